"""The frame pipe: neither end can block the other."""

import socket

import pytest

from batchgen.domain.requests import SamplingParams
from batchgen.engines.pipe import FramePipe, PipeClosed
from batchgen.engines.protocol import Cancel, Cancelled, EngineRequest, FromHost, Submit, ToHost


@pytest.fixture
def ends():
    a, b = socket.socketpair()
    ours: FramePipe[FromHost] = FramePipe(a, FromHost)
    theirs: FramePipe[ToHost] = FramePipe(b, ToHost)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_frames_arrive_whole_and_in_order(ends):
    ours, theirs = ends
    requests = [EngineRequest(id=i, prompt_ids=[i], sampling=SamplingParams()) for i in range(3)]
    ours.send(Submit(requests=requests))
    ours.send(Cancel(ids=[1]))
    assert theirs.wait(1.0)
    assert theirs.receive() == [Submit(requests=requests), Cancel(ids=[1])]
    assert theirs.receive() == []


def test_a_writer_does_not_wait_for_a_reader_that_does_not_read(ends):
    ours, theirs = ends
    sent = [Cancel(ids=list(range(100_000))) for _ in range(40)]
    for frame in sent:
        ours.send(frame)
    assert ours.wants_write
    received = []
    while len(received) < len(sent):
        theirs.wait(1.0)
        received += theirs.receive()
        ours.flush()
    assert received == sent
    assert not ours.wants_write


def test_two_writers_that_fill_the_pipe_do_not_block_each_other(ends):
    ours, theirs = ends
    big = list(range(200_000))
    for _ in range(20):
        ours.send(Cancel(ids=big))
        theirs.send(Cancelled(ids=big))
    assert ours.wants_write
    assert theirs.wants_write


def test_what_was_written_before_the_end_is_read_before_the_end_is_told(ends):
    ours, theirs = ends
    theirs.send(Cancelled(ids=[7]))
    theirs.close()
    assert ours.receive() == [Cancelled(ids=[7])]
    with pytest.raises(PipeClosed):
        ours.receive()


def test_writing_to_an_end_that_is_gone_says_so(ends):
    ours, theirs = ends
    theirs.close()
    with pytest.raises(PipeClosed):
        ours.send(Cancel(ids=[1]))
