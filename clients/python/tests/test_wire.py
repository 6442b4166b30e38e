"""Answers that are not of their request are nobody's (rules K and N in doc/protocol.md)."""

import os
import random

import pytest

from pgcache_fence import wire

NAME, OTHER, VALUE = 'n:f:1.t:{1}', 'n:f:1.t:{2}', 'n:v:1.t:{1}:json'


def block(request, records, permit=b'7.a 5', nonce=None):
    return [b'OK', b'QUEUED', b'QUEUED', [records, permit + b' ' + (nonce or request.nonce)]]


def read(names, records):
    request = wire.pack_block(0, names)
    answers = block(request, records)
    wire.vet(request, answers)
    return wire.read_block(names, answers)


def test_a_record_counts_for_the_key_that_it_names():
    assert read([NAME], [b'7.a 3 {1}\nrow']) == [wire.Hit(b'7.a 3 ', b'row')]
    assert read([NAME], [b'7.a 3 12.ab {1}\nrow']) == [wire.Hit(b'7.a 3 ', b'row')]
    assert read([NAME, OTHER], [b'7.a 3 ', None]) == [wire.Miss(b'7.a 5')] * 2
    assert read([VALUE], [b'7.a 3 {1}:json\n{}']) == [wire.Hit(b'7.a 3 ', b'{}')]
    for names, records in (([NAME], [b'7.a 3 {2}\nrow']), ([NAME], [b'7.a 3 x{1}\nrow']), ([NAME], [b'7.a 3 \nrow {1}']),
                           ([VALUE], [b'7.a 3 {1}\nrow']), ([NAME, OTHER], [b'7.a 3 {2}\nrow', b'7.a 3 {1}\nrow']),
                           ([NAME], []), ([NAME], [None, None])):
        with pytest.raises(wire.Confused):
            read(names, records)


@pytest.mark.parametrize('make', [
    lambda: wire.pack_block(0, [NAME]), lambda: wire.pack_get(0, NAME), lambda: wire.pack_check(0, [NAME], [b'7.a 3 ']),
    lambda: wire.pack_derived(0, VALUE)])
def test_an_answer_names_its_question(make):
    request, earlier = make(), make()
    assert request.nonce != earlier.nonce and request.nonce in request.packed
    for last in (b'QUEUED', [], None, 1, b'', [None], [[None], b'7.a 5'], [[None], b'7.a 5 ' + earlier.nonce], [b'miss', b'7.a 5', earlier.nonce],
                 b'1 ' + earlier.nonce):
        with pytest.raises(wire.Confused):
            wire.vet(request, [b'OK'] * (request.n - 1) + [last])
    wire.vet(request, [b'OK'] * (request.n - 1) + [OSError('an error tells nothing that a reader could believe')])


def test_the_slow_path_compares_both():
    request = wire.pack_get(0, NAME)
    for key, good in ((b'{1}', True), (b'{2}', False)):
        answers = [[b'hit', b'7.a 3 ' + key + b'\nrow', request.nonce]]
        if good:
            wire.vet(request, answers)
            assert wire.read_get(answers[0]) == wire.Hit(b'7.a 3 ', b'row')
        else:
            with pytest.raises(wire.Confused):
                wire.vet(request, answers)


def test_the_epoch_of_a_row_version_is_not_in_the_record():
    for side in (None, VALUE):
        words = wire.pack_put(0, NAME, side, b'7-3fa21c.a 5', '6-3fa21c.5', b'row', 9).packed.split(b'\r\n')
        assert words.count(b'6-3fa21c.5') == 1
        assert (b'7-3fa21c.a 5 {1}\nrow' in words) == (side is not None)


def test_a_nonce_does_not_come_back():
    made = []
    for _ in range(2):
        random.seed(1)
        made.append(wire.pack_get(0, NAME).nonce)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, wire.new_nonce())
        os._exit(0)
    os.waitpid(child, 0)
    made += [os.read(read, 100), wire.new_nonce()]
    os.close(read)
    os.close(write)
    assert len(set(made)) == 4
