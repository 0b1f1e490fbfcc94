# One image for every process of the stand-alone project: server, reaper, worker, AGQ and Rota.
# docs/deploy.md says how to run it. It needs no writable file system besides /tmp.

ARG PYTHON=3.13-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /srv/ojs
COPY requirements-server.lock .
# Wheels only: nothing is compiled, and each file is one whose hash is known.
RUN python -m venv /opt/ojs && \
    /opt/ojs/bin/pip install --require-hashes --no-deps --only-binary :all: -r requirements-server.lock
COPY manage.py ./
COPY jobs jobs
COPY workers workers
COPY templates templates
COPY ojs_project ojs_project
# The byte code is made here: later the file system is read-only.
RUN /opt/ojs/bin/python -m compileall -q jobs workers ojs_project

FROM python:${PYTHON}
RUN groupadd --system --gid 10001 ojs && \
    useradd --system --uid 10001 --gid ojs --home-dir /srv/ojs --no-create-home --shell /usr/sbin/nologin ojs && \
    install --directory --owner ojs --group ojs --mode 0700 /data
COPY --from=build /opt/ojs /opt/ojs
COPY --from=build /srv/ojs /srv/ojs
ENV PATH=/opt/ojs/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_DATA_DIR=/data \
    OJS_SERVER_HOST=0.0.0.0 \
    OJS_SERVER_PROCESSES=2
WORKDIR /srv/ojs
USER 10001:10001
EXPOSE 8000 6380 8081
# Asks the server; a process that has no port is asked through its --alive-file /tmp/alive.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-m", "ojs_project.health"]
# Lists, not shells: signals reach the process itself.
CMD ["python", "manage.py", "runhttp"]
