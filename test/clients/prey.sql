-- Tables of every kind of key, for the tests of the libraries among traps (traps.sql). An administrator runs this in a new database.
CREATE SCHEMA app;
CREATE TYPE mood AS ENUM ('calm', 'wild');
CREATE TYPE app.shade AS ENUM ('light', 'dark');
CREATE TYPE place AS (x int, y int);
CREATE DOMAIN code AS text CHECK (VALUE <> '');
CREATE TABLE prey (code code PRIMARY KEY, mood mood NOT NULL, place place, days int[], name varchar(20), version bigint NOT NULL DEFAULT 0);
CREATE TABLE prey_mood (mood mood PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE prey_shade (shade app.shade PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE prey_name (name varchar(20) PRIMARY KEY, note char(5) UNIQUE, version int NOT NULL DEFAULT 0);
CREATE TABLE prey_pair (code code, mood mood, name text, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (code, mood));
CREATE TABLE prey_id (id int PRIMARY KEY, name text, secret text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE prey_bare (id int PRIMARY KEY, name text);
CREATE TABLE herd (id int PRIMARY KEY, pen mood, name text);
INSERT INTO prey VALUES ('a', 'calm', '(1,2)', '{1,2}', 'fawn');
INSERT INTO prey_mood VALUES ('calm', 'fawn');
INSERT INTO prey_shade VALUES ('dark', 'fawn');
INSERT INTO prey_name VALUES ('fawn', 'x');
INSERT INTO prey_pair VALUES ('a', 'wild', 'fawn');
INSERT INTO prey_id VALUES (1, 'fawn', 'hidden');
INSERT INTO prey_bare VALUES (1, 'fawn');
INSERT INTO herd VALUES (1, 'calm', 'fawn'), (2, 'calm', 'kid'), (3, 'wild', 'wolf');
SELECT fence.attach('prey'), fence.attach('prey_mood'), fence.attach('prey_shade'), fence.attach('prey_name'), fence.attach('prey_pair'),
       fence.attach('prey_name', key => '{note}', domain => 'prey_note'), fence.attach('prey_id', columns => '{id,name,version}'),
       fence.attach('prey_bare', version => NULL), fence.attach('herd', key => '{pen}', scope => 'group');
CREATE FUNCTION count_of(a int) RETURNS jsonb STABLE LANGUAGE sql BEGIN ATOMIC SELECT to_jsonb(length(name)) FROM prey_id WHERE id = a; END;
SELECT fence.define_derived('count_of', '{prey_id($1)}', 'count_of(int)');
CREATE ROLE application LOGIN;
CREATE ROLE trapper LOGIN;
GRANT USAGE ON SCHEMA app TO application, trapper;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO application;
GRANT UPDATE ON prey_id TO application;
GRANT CREATE ON SCHEMA public TO trapper;
