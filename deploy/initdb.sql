-- The official image of PostgreSQL runs this in a new cluster's first database.
CREATE EXTENSION pgcache_fence;
