/* Checks what is typed into a form: whether JSON is JSON, which fields the arguments of a type have,
   and when a schedule runs. The server checks all of it again; without script it says so after the
   form was sent. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
    const PAUSE = 300; // milliseconds without a key before the server is asked

    /* A line under a field, read out when it changes. */
    function line(field, kind) {
        const said = document.createElement("div");
        said.className = `help ojs-said ojs-said-${kind}`;
        said.setAttribute("role", "status");
        field.closest(".form-row").append(said);
        return said;
    }

    for (const field of document.querySelectorAll("[data-ojs-json]")) {
        const said = line(field, "wrong");
        const check = () => {
            let problem = "";
            if (field.value.trim()) {
                try {
                    const value = JSON.parse(field.value);
                    const kind = Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
                    problem = kind === field.dataset.ojsJson ? "" : field.dataset.ojsKind;
                } catch (error) {
                    problem = field.dataset.ojsWrong.replace("%(problem)s", error.message);
                }
            }
            if (said.textContent !== problem) {
                said.textContent = problem;
            }
            field.toggleAttribute("aria-invalid", Boolean(problem));
        };
        field.addEventListener("input", check);
        check();
    }

    /* Ask the server about what is in some fields, once they rest, and show the latest reply. */
    function ask(fields, address, show) {
        let timer = null, asked = 0;
        const look = async () => {
            const mine = ++asked;
            const url = new URL(address, location.href);
            for (const field of fields) {
                url.searchParams.set(field.name, field.value);
            }
            try {
                const reply = await fetch(url, {credentials: "same-origin"});
                if (reply.ok && !reply.redirected && mine === asked) {
                    show(await reply.json());
                }
            } catch {
                // The server is away: it checks the form when it is sent.
            }
        };
        for (const field of fields) {
            field.addEventListener("input", () => {
                clearTimeout(timer);
                timer = setTimeout(look, PAUSE);
            });
        }
        if (fields.some(field => field.value)) {
            look();
        }
    }

    function list(place, title, texts) {
        const items = texts.map(text => {
            const item = document.createElement("li");
            item.textContent = text;
            return item;
        });
        const head = document.createElement("strong");
        head.textContent = title;
        const all = document.createElement("ul");
        all.append(...items);
        place.replaceChildren(...(title ? [head] : []), ...(items.length ? [all] : []));
    }

    const job = document.querySelector("form[data-ojs-about]");
    if (job) {
        const said = line(job.elements.args, "about");
        const inputs = job.querySelector("[data-ojs-inputs]");
        const fields = () => [...inputs.querySelectorAll("input, select")];
        ask([job.elements.type], job.dataset.ojsAbout, known => {
            list(said, known.schema, known.fields);
            const shown = inputs.querySelector("[data-ojs-type]")?.dataset.ojsType;
            if (shown === job.elements.type.value.trim()) {
                return; // with what the server says of them
            }
            // What the types have in common keeps what is filled in.
            const filled = new Map(fields().map(field => [field.name, field.value]));
            inputs.innerHTML = known.inputs;
            for (const field of fields().filter(each => filled.has(each.name))) {
                field.value = filled.get(field.name);
            }
        });
    }

    const place = document.querySelector("[data-ojs-preview]");
    const expression = document.querySelector("#id_expression");
    if (place && expression) {
        const zone = document.querySelector("#id_timezone");
        place.setAttribute("role", "status");
        ask([expression, zone], place.dataset.ojsPreview, found => {
            if (!expression.value.trim()) {
                found = {meaning: "", runs: [], notes: []};
            }
            place.classList.toggle("ojs-said-wrong", Boolean(found.problem));
            list(place, found.problem || found.meaning, found.problem ? [] : [...found.runs, ...found.notes]);
        });
    }
});
