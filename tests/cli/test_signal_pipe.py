"""`SignalPipe`: a thread may wake the loop at any time, even when the loop has ended."""

from __future__ import annotations

import select
import signal

from limpet.worker.protocol import SignalPipe


def test_a_wake_up_after_the_end_does_nothing() -> None:
    with SignalPipe.catching((signal.SIGTERM,)) as pipe:
        pipe.wake()
        waiting = select.poll()  # not select(): a process of many tests may have 1,024 files open
        waiting.register(pipe.fd, select.POLLIN)
        assert [fd for fd, _ in waiting.poll(0)] == [pipe.fd]
        assert pipe.read() == []
    pipe.wake()


def test_a_signal_is_read_as_its_number() -> None:
    with SignalPipe.catching((signal.SIGTERM,)) as pipe:
        signal.raise_signal(signal.SIGTERM)
        assert pipe.read() == [signal.SIGTERM]
