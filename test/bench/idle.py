"""Counts what the background workers do on a server that nobody uses. idle.sh calls it with a PostgreSQL server and a Redis."""

import argparse
import os
import time

import psycopg2
import redis

TICK = os.sysconf('SC_CLK_TCK')
ROWS = 200


def ticks(pid, children=False):
    """Processor time of a process in seconds; children: also of its children that have ended."""
    with open(f'/proc/{pid}/stat') as file:
        fields = file.read().rpartition(')')[2].split()
    return sum(int(field) for field in fields[11:15 if children else 13]) / TICK


def fence_tables(cursor, first, last):
    """Makes and fences the tables of these numbers, and caches their rows."""
    for i in range(first, last):
        cursor.execute(f"CREATE TABLE t{i} (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);"
                       f"INSERT INTO t{i} SELECT g, repeat('x', 100) FROM generate_series(1, {ROWS}) g;"
                       f"SELECT fence.attach('t{i}')")
    for i in range(first, last):
        deadline = time.monotonic() + 120
        while True:
            cursor.execute(f"SELECT status FROM fence.get('t{i}', '1')")
            if cursor.fetchone()[0] in ('hit', 'miss'):
                break
            if time.monotonic() > deadline:
                raise SystemExit(f'idle: t{i} is not announced')
            time.sleep(0.1)
        cursor.execute(f"CALL fence.warm('t{i}')")


class Counts:
    """What was done up to now."""

    def __init__(self, options, client, cursor):
        stats = client.info('commandstats')
        self.commands = sum(s['calls'] for name, s in stats.items() if name not in ('cmdstat_info', 'cmdstat_select', 'cmdstat_time'))
        self.redis = ticks(options.redis_pid)
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'pgcache_fence%'"
                       " AND backend_type !~ 'job|round'")
        self.postgres = ticks(options.postmaster, children=True) + sum(ticks(pid) for pid, in cursor.fetchall())
        cursor.execute("SELECT coalesce(sum(value), 0) FROM fence.metrics WHERE name = 'cache_fence_db_compare'")
        self.rows = int(cursor.fetchone()[0])
        with open(options.log) as log:
            self.fatal = sum('FATAL' in line for line in log)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--redis')
    parser.add_argument('--redis-pid', type=int)
    parser.add_argument('--postmaster', type=int)
    parser.add_argument('--log')
    parser.add_argument('--domains', default='10,300,1000')
    parser.add_argument('--seconds', type=int, default=60)
    options = parser.parse_args()
    connection = psycopg2.connect('')
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute('CREATE EXTENSION IF NOT EXISTS pgcache_fence')
    client = redis.Redis(unix_socket_path=options.redis)
    print('domains  commands/s  CPU of Redis  CPU of workers  rows compared/s  FATAL in the log', flush=True)
    have = 0
    for domains in sorted(int(n) for n in options.domains.split(',')):
        fence_tables(cursor, have, domains)
        have = domains
        time.sleep(15)                  # what the new tables have caused is done
        before, start = Counts(options, client, cursor), time.monotonic()
        time.sleep(options.seconds)
        after, seconds = Counts(options, client, cursor), time.monotonic() - start
        print(f'{domains:7}  {(after.commands - before.commands) / seconds:10.1f}'
              f'  {100 * (after.redis - before.redis) / seconds:10.2f} %  {100 * (after.postgres - before.postgres) / seconds:12.2f} %'
              f'  {(after.rows - before.rows) / seconds:15.1f}  {after.fatal - before.fatal:16}', flush=True)


main()
