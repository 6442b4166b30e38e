\pset footer off
\echo
\echo 'fence.status of a few rows:'
SELECT r.domain, r.key, s.*
  FROM (VALUES ('pgbench_accounts', '1'), ('pgbench_accounts', '2'), ('pgbench_accounts', '999999'),
               ('pgbench_tellers', '1'), ('pgbench_tellers', '2'),
               ('pgbench_branches', '1'), ('pgbench_branches', '2')) r (domain, key),
       fence.status(r.domain, r.key) s;
