"""Strong reads and puts as doc/clients.md describes them, for the test programs that use redis-py."""

import secrets

import redis


def text(word):
    return word.decode('utf-8', 'surrogateescape') if isinstance(word, bytes) else word


def read(client, fence):
    """Returns ('hit', token, version, payload), ('miss', permit), or ('unarmed',). If unarmed, the reader must not put."""
    with client.pipeline(transaction=True) as block:
        block.get(fence)
        block.execute_command('FCALL_RO', 'fence_token', 1, fence)
        return judge(*block.execute())


def read_named(client, fence):
    """The same, of a client to whom somebody may give the answers to other questions. Raises redis.ConnectionError after such an
    answer, and closes the connections."""
    nonce = '#' + secrets.token_hex(8)
    try:
        with client.pipeline(transaction=True) as block:
            block.get(fence)
            block.execute_command('FCALL_RO', 'fence_token', 1, fence, nonce)
            record, permit = map(text, block.execute())
        permit, _, own = permit.rpartition(' ')
        header, newline, _ = (record or '').partition('\n')
        if own == nonce and (not newline or header.split(' ')[-1] == fence[fence.index('{'):]):
            return judge(record, permit)
    except (TypeError, ValueError, AttributeError):     # an answer of another shape
        pass
    client.connection_pool.disconnect()
    raise redis.ConnectionError('the answer to another question')


def read_plain(client, fence):
    """The same in two commands. Only for a client that has one connection, and repeats no command by itself."""
    record = client.get(fence)
    return judge(record, client.execute_command('FCALL_RO', 'fence_token', 1, fence))


def judge(record, permit):
    """The result of a strong read, from the record that was read and the reply of fence_token after it."""
    record, permit = text(record) or '', text(permit)
    if not permit:
        return ('unarmed',)
    header, newline, payload = record.partition('\n')
    words = header.split(' ')
    if newline and words[0] == permit.partition(' ')[0]:
        return 'hit', words[0], int(words[1]), payload
    return 'miss', permit


def put(client, fence, permit, row_version, payload):
    """Puts a row. Returns 'stored', or 'refused ' and the reason."""
    return text(client.execute_command('FCALL', 'fence_put', 1, fence, permit, row_version, payload, 0))
