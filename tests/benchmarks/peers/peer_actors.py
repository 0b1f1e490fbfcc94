"""The job for dramatiq: an actor in a module that names its broker."""

import os

import dramatiq
import peer_jobs
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["PEER_REDIS"]))


@dramatiq.actor
def tick_actor() -> None:
    peer_jobs.tick()
