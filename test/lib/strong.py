"""Strong reads and puts as doc/clients.md tells to make them, for the programs here that use redis-py."""


def text(word):
    return word.decode('utf-8', 'surrogateescape') if isinstance(word, bytes) else word


def read(client, fence):
    """('hit', token, version, payload), ('miss', permit), or ('unarmed',): nothing may be taken for current, or put."""
    with client.pipeline(transaction=True) as block:
        block.get(fence)
        block.execute_command('FCALL_RO', 'fence_token', 1, fence)
        return judge(*block.execute())


def read_plain(client, fence):
    """The same in two commands: only for a client that has one connection, and asks for nothing again by itself."""
    record = client.get(fence)
    return judge(record, client.execute_command('FCALL_RO', 'fence_token', 1, fence))


def judge(record, permit):
    """What was read, and what fence_token answered after it."""
    record, permit = text(record) or '', text(permit)
    if not permit:
        return ('unarmed',)
    header, newline, payload = record.partition('\n')
    words = header.split(' ')
    if newline and words[0] == permit.partition(' ')[0]:
        return 'hit', words[0], int(words[1]), payload
    return 'miss', permit


def put(client, fence, permit, version, payload):
    """'stored', or 'refused ' and why."""
    return text(client.execute_command('FCALL', 'fence_put', 1, fence, permit, version, payload, 0))
