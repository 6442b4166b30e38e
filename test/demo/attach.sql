CREATE EXTENSION pgcache_fence;
SELECT fence.attach('pgbench_accounts', add_version => true);
SELECT fence.attach('pgbench_tellers', add_version => true);
SELECT fence.attach('pgbench_branches', add_version => true);
