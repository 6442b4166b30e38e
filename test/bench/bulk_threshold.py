"""Measures both sides of bulk_threshold: it saves time of the writer and costs cached values of the readers.

bulk_threshold.sh calls it with a PostgreSQL server, a Redis and the environment to find them. It prints tables of medians. All
variants that it compares are timed in the same run, in turns.
"""

import argparse
import multiprocessing
import random
import statistics
import time

import psycopg2
import redis

TABLE_ROWS = 20000
SIZES = (1, 10, 100, 300, 1000, 3000, 10000)
MODES = ("unfenced", "row", "domain")
NEVER = 2**31 - 1


def connect():
    connection = psycopg2.connect("")
    connection.autocommit = True
    return connection


def prepare(cursor):
    cursor.execute("CREATE EXTENSION IF NOT EXISTS pgcache_fence")
    for table in ("unfenced", "fenced"):
        cursor.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, pad text, "
                       "version bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)")
        cursor.execute(f"INSERT INTO {table} (id, pad) SELECT g, repeat('x', 100) FROM generate_series(1, %s) g",
                       (TABLE_ROWS,))
    cursor.execute("SELECT fence.attach('fenced')")
    cursor.execute("VACUUM ANALYZE")
    deadline = time.monotonic() + 60
    while True:
        cursor.execute("SELECT status FROM fence.get('fenced', '1')")
        if cursor.fetchone()[0] in ("hit", "miss"):
            return
        if time.monotonic() > deadline:
            raise SystemExit("the table is not served: see fence.state")
        time.sleep(0.05)


def set_mode(cursor, mode):
    """In mode domain the first row is reserved by itself, and the second one makes the writer reserve the whole domain."""
    cursor.execute("SET pgcache_fence.bulk_threshold = %s", (1 if mode == "domain" else NEVER,))


def update(mode, size):
    table = "unfenced" if mode == "unfenced" else "fenced"
    first = random.randint(1, TABLE_ROWS - size + 1)
    # as an application does that increments versions itself
    return f"UPDATE {table} SET n = n + 1, version = version + 1 WHERE id BETWEEN {first} AND {first + size - 1}"


class Processors:
    """The processor times of the backend, of the extension's workers and of Redis. They are about the same on a busy machine."""

    def __init__(self, cursor, socket):
        cursor.execute("SELECT pid FROM pg_stat_activity "
                       "WHERE pid = pg_backend_pid() OR "
                       "backend_type IN ('pgcache_fence keeper', 'pgcache_fence patrol', 'pgcache_fence courier')")
        self.pids = [row[0] for row in cursor.fetchall()]
        self.pids.append(redis.Redis(unix_socket_path=socket).info("server")["process_id"])

    def seconds(self):
        """Processor seconds of PostgreSQL's processes, and of Redis."""
        spent = []
        for pid in self.pids:
            with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
                spent.append(int(file.read().split()[0]) / 1e9)
        return sum(spent[:-1]), spent[-1]


def time_slice(cursor, processors, mode, size, seconds):
    """Runs transactions for some seconds. Per transaction: seconds, processor seconds of PostgreSQL, processor seconds of Redis."""
    set_mode(cursor, mode)
    cursor.execute(update(mode, size))
    before = processors.seconds()
    count, start = 0, time.monotonic()
    while count < 2 or time.monotonic() < start + seconds:
        cursor.execute(update(mode, size))
        count += 1
    took = time.monotonic() - start
    after = processors.seconds()
    return took / count, (after[0] - before[0]) / count, (after[1] - before[1]) / count


def warm(cursor):
    cursor.execute("SELECT count(fence.read('fenced', g::text)) FROM generate_series(1, %s) g", (TABLE_ROWS,))


def writers(cursor, socket, rounds, seconds):
    """Prints the table of ratios. All rows are cached when a statement that reserves row by row begins, because it costs most then."""
    processors = Processors(cursor, socket)
    print("rows/txn  unfenced     row  ratio  domain  ratio   processor us/row, beyond the unfenced table's")
    print("               TPS     TPS            TPS          row: PostgreSQL  Redis   domain: PostgreSQL  Redis")
    for size in SIZES:
        times = {mode: [] for mode in MODES}
        for turn in range(rounds):
            cursor.execute("VACUUM unfenced")
            cursor.execute("VACUUM fenced")
            for mode in MODES[turn % 3:] + MODES[:turn % 3]:
                if mode == "row":
                    set_mode(cursor, mode)
                    warm(cursor)
                times[mode].append(time_slice(cursor, processors, mode, size, seconds))
        plain, row, domain = ([statistics.median(part) for part in zip(*times[mode])] for mode in MODES)

        def beyond(mode):
            return [(mode[i] - plain[i]) * 1e6 / size for i in (1, 2)]

        line = f"{size:8d}  {1 / plain[0]:8.0f}  {1 / row[0]:6.0f}  {plain[0] / row[0]:5.2f}  "
        # one row never passes the threshold
        line += "     -      -" if size == 1 else f"{1 / domain[0]:6.0f}  {plain[0] / domain[0]:5.2f}"
        line += "          {:15.2f}  {:5.2f}".format(*beyond(row))
        line += "" if size == 1 else "   {:18.2f}  {:5.2f}".format(*beyond(domain))
        print(line, flush=True)


class Reader:
    """A client that reads through Redis as doc/clients.md says."""

    def __init__(self, socket):
        self.connection = connect()
        self.cursor = self.connection.cursor()
        self.redis = redis.Redis(unix_socket_path=socket)
        self.cursor.execute("SELECT fence.fence_key('fenced', g) FROM generate_series(1, %s) g ORDER BY g", (TABLE_ROWS,))
        self.fences = [fence for fence, in self.cursor.fetchall()]

    def read(self, key):
        fence = self.fences[key - 1]
        with self.redis.pipeline(transaction=True) as block:
            block.get(fence)
            block.execute_command("FCALL_RO", "fence_token", 1, fence)
            record, permit = block.execute()
        if not permit:
            answer = [b"unarmed"]
        elif record and record.startswith(permit.split(b" ")[0] + b" "):
            return "hit"
        else:
            answer = [b"miss", permit]
        self.cursor.execute("SELECT fence.row_version(version), to_jsonb(t)::text FROM fenced t WHERE id = %s", (key,))
        version, row = self.cursor.fetchone()
        if answer[0] == b"miss" and version:
            self.redis.fcall("fence_put", 1, fence, answer[1], version, row, 0)
        return answer[0].decode()


def reads(socket):
    """Measures a hit, and a miss with the put after it. Returns the difference in the servers' processor time, in microseconds."""
    reader = Reader(socket)
    processors = Processors(reader.cursor, socket)
    keys = random.sample(range(1, TABLE_ROWS + 1), 5000)
    took = {}
    writer = connect().cursor()
    set_mode(writer, "domain")
    for _ in range(3):
        writer.execute("UPDATE fenced SET n = n + 1 WHERE id <= 2")
        while reader.read(3) != "hit":      # the message that ends that UPDATE's reservation may still be under way
            pass
        for what in ("miss", "hit"):
            before, start = sum(processors.seconds()), time.monotonic()
            for key in keys:
                reader.read(key)
            elapsed = time.monotonic() - start
            took.setdefault(what, []).append([spent * 1e6 / len(keys)
                                              for spent in (elapsed, sum(processors.seconds()) - before)])
    hit, miss = ([statistics.median(part) for part in zip(*took[what])] for what in ("hit", "miss"))
    print(f"\na read that hits takes {hit[0]:.0f} us ({hit[1]:.0f} us of the servers' processors), "
          f"one that misses and puts {miss[0]:.0f} us ({miss[1]:.0f} us)")
    return miss[1] - hit[1]


def read_along(socket, hot, stop, results):
    reader = Reader(socket)
    counts = {"hit": 0, "miss": 0, "pending": 0, "unarmed": 0}
    longest = []
    while not stop.is_set():
        start = time.monotonic()
        counts[reader.read(random.randint(1, hot))] += 1
        longest.append(time.monotonic() - start)
    longest.sort()
    results.put((counts, longest[int(len(longest) * 0.99)], longest[-1]))


def side_by_side(cursor, socket, seconds):
    """A reader of a working set beside a writer that commits one transaction per second."""
    print("\none reader of 20000 cached rows beside one transaction per second")
    print("rows/txn  mode    reads/s  hits %  pending %   p99 ms   max ms")
    for size in (300, 1000, 3000, 10000):
        for mode in ("row", "domain"):
            set_mode(cursor, mode)
            warm(cursor)
            cursor.execute("VACUUM fenced")
            stop, results = multiprocessing.Event(), multiprocessing.Queue()
            process = multiprocessing.Process(target=read_along, args=(socket, TABLE_ROWS, stop, results))
            start = time.monotonic()
            process.start()
            for _ in range(seconds):
                cursor.execute(update(mode, size))
                time.sleep(1)
            stop.set()
            counts, p99, longest = results.get()
            process.join()
            total = sum(counts.values())
            took = time.monotonic() - start
            print(f"{size:8d}  {mode:6}  {total / took:7.0f}  {100 * counts['hit'] / total:6.1f}  "
                  f"{100 * counts['pending'] / total:9.2f}  {p99 * 1e3:7.2f}  {longest * 1e3:7.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=0.3)
    parser.add_argument("--readers-only", action="store_true")
    options = parser.parse_args()
    cursor = connect().cursor()
    prepare(cursor)
    for fsync in () if options.readers_only else ("on", "off"):
        cursor.execute(f"ALTER SYSTEM SET fsync = {fsync}")
        cursor.execute("SELECT pg_reload_conf()")
        other = connect().cursor()
        while other.execute("SHOW fsync") or other.fetchone()[0] != fsync:
            other = connect().cursor()
        print(f"\nfsync = {fsync}")
        writers(cursor, options.redis, options.rounds, options.slice)
    warm(cursor)
    extra = reads(options.redis)
    print(f"so a reservation of the whole domain costs {extra:.0f} us of processor time for each cached row that the "
          f"transaction did not change: {extra * TABLE_ROWS / 1e6:.1f} s for {TABLE_ROWS} of them")
    side_by_side(cursor, options.redis, 5)


main()
