"""A program that conformance.md warns of: it serves what it has kept, without a check. The history checker must catch it."""

import sys

import psycopg2

ROW = 'SELECT to_jsonb(item)::text FROM item WHERE id = %s'


def main():
    kept, connection, dsn = {}, None, None
    print('ready\tread', flush=True)
    for line in sys.stdin:
        request, *words = line.rstrip('\n').split('\t')
        answer = 'ok'
        if request == 'postgres':
            connection, dsn = None, '%s application_name=%s connect_timeout=2' % tuple(words)
        elif request == 'read' and words[0] in kept:
            answer = 'hit\t' + kept[words[0]]
        elif request == 'read':
            try:
                connection = connection or psycopg2.connect(dsn)
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute(ROW, words)
                    kept[words[0]] = (cursor.fetchone() or ['null'])[0]
                answer = 'read\t' + kept[words[0]]
            except psycopg2.Error as error:
                connection, answer = None, 'error\t%s' % type(error).__name__
        print(answer, flush=True)


main()
