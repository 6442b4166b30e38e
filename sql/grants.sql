--
-- Who may do what with each object of the extension, as CREATE EXTENSION leaves it. A new object is a new line here: who may use it?
--
\set schema grants
\i test/lib/regress.sql

-- What the roles other than the owner have: "role=privileges". NULL privileges are PostgreSQL's own default for the kind.
CREATE FUNCTION others(privileges aclitem[], owner oid) RETURNS text LANGUAGE sql RETURN
	(SELECT string_agg(CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END || '=' || a.all, ' ' ORDER BY a.grantee)
	   FROM (SELECT grantee, string_agg(privilege_type || CASE WHEN is_grantable THEN '*' ELSE '' END, ',' ORDER BY privilege_type)
			   FROM aclexplode(privileges) WHERE grantee <> owner GROUP BY grantee) AS a (grantee, "all"));
CREATE VIEW member AS
	SELECT d.classid, d.objid FROM pg_depend d
	 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pgcache_fence');

-- The initial privileges: other tests grant some. Those that change no initial privilege have none on record.
SELECT p.proname AS function, CASE WHEN count(*) > 1 THEN count(*) END AS n, others(coalesce(i.initprivs, acldefault('f', p.proowner)), p.proowner) AS others,
	p.prosecdef AS definer, p.proconfig AS settings
	FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
	LEFT JOIN pg_init_privs i ON i.classoid = m.classid AND i.objoid = p.oid
	GROUP BY 1, 3, 4, 5 ORDER BY p.proname COLLATE "C";
SELECT c.relkind AS kind, c.relname AS name, others(coalesce(i.initprivs, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner)), c.relowner) AS others
	FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
	LEFT JOIN pg_init_privs i ON i.classoid = m.classid AND i.objoid = c.oid AND i.objsubid = 0
	ORDER BY c.relkind, c.relname COLLATE "C";
SELECT n.nspname AS schema, others(coalesce(i.initprivs, acldefault('n', n.nspowner)), n.nspowner) AS others
	FROM member m JOIN pg_namespace n ON m.classid = 'pg_namespace'::regclass AND m.objid = n.oid
	LEFT JOIN pg_init_privs i ON i.classoid = m.classid AND i.objoid = n.oid;
-- Columns with privileges of their own; kinds of objects that are not listed above; objects that are not the installing superuser's.
SELECT a.attrelid::regclass, a.attname, a.attacl FROM member m JOIN pg_attribute a ON m.classid = 'pg_class'::regclass AND m.objid = a.attrelid
	WHERE a.attacl IS NOT NULL;
-- from PostgreSQL 17 on row types are members, too
SELECT DISTINCT m.classid::regclass AS kind FROM member m WHERE m.classid <> 'pg_type'::regclass ORDER BY 1;
SELECT pg_describe_object(m.classid, m.objid, 0) FROM member m
	LEFT JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
	LEFT JOIN pg_class c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
	LEFT JOIN pg_namespace n ON m.classid = 'pg_namespace'::regclass AND m.objid = n.oid
	WHERE coalesce(p.proowner, c.relowner, n.nspowner) <> (SELECT extowner FROM pg_extension WHERE extname = 'pgcache_fence');

--
-- The internal functions
--
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_fence_anybody;
RESET client_min_messages;
CREATE ROLE regress_fence_anybody;
GRANT USAGE, CREATE ON SCHEMA grants TO regress_fence_anybody;
SET ROLE regress_fence_anybody;
CREATE TABLE mine (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
-- would take a lock on each fenced table of the database
CREATE TRIGGER restored AFTER INSERT ON mine EXECUTE FUNCTION fence._domain_restored();
-- these must be everybody's: partitions of fenced tables, and dumps of them, are made by their owners. Elsewhere they do nothing.
SELECT fence.before_row();
SELECT fence.after_row();
SELECT fence.before_truncate();
CREATE TRIGGER mine BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION fence.before_row();
INSERT INTO mine VALUES (1);
DROP TRIGGER mine ON mine;
CREATE TRIGGER mine AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION fence.after_row();
INSERT INTO mine VALUES (1);
DROP TRIGGER mine ON mine;
CREATE TRIGGER mine BEFORE TRUNCATE ON mine EXECUTE FUNCTION fence.before_truncate();
TRUNCATE mine;
RESET ROLE;

-- Whoever is granted it: the function looks at whose trigger it is.
GRANT EXECUTE ON FUNCTION fence._domain_restored TO regress_fence_anybody;
SET ROLE regress_fence_anybody;
CREATE TRIGGER restored AFTER INSERT ON mine EXECUTE FUNCTION fence._domain_restored();
INSERT INTO mine VALUES (2);
RESET ROLE;
REVOKE EXECUTE ON FUNCTION fence._domain_restored FROM regress_fence_anybody;

-- A partition of a fenced table is made by its owner, who has no other right on the extension.
SET ROLE regress_fence_anybody;
CREATE TABLE parted (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
RESET ROLE;
SELECT fence.attach('parted');
SET ROLE regress_fence_anybody;
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10);
INSERT INTO parted VALUES (1) RETURNING version;
RESET ROLE;
SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = 'part'::regclass ORDER BY tgname COLLATE "C";
SELECT fence.detach('parted');

SET client_min_messages = warning;
DROP SCHEMA grants CASCADE;
DROP ROLE regress_fence_anybody;
