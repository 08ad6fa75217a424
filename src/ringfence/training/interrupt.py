"""Ctrl-C while a run trains."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """Turns the first Ctrl-C into a request to save and stop; a second one stops at once."""

    def __init__(self) -> None:
        self.pending = False

    def __enter__(self) -> "Interrupt":
        self.previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.pending = True
        signal.signal(signal.SIGINT, self.previous)
