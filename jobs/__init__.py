"""What a job is and how it moves: the Open Job Spec core (Layer 1) as a Django app."""

__version__ = "0.1.0"
