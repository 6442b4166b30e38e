# Runs the shell's file of doc/clients.md for the tests: a request per line in, an answer per line out. In the directory of the
# file; the environment has REDIS and what psql needs. Requests and answers are words and blanks instead of JSON:
#
#     names DOMAIN KEY...     FENCE
#     read ID | slow ID       QUERIES PAYLOAD, or QUERIES and nothing if there is no row; "error STATUS"
#
# Each word of names is in hex, so that it may be any text.

. ./reader.bash

row="SELECT fence.row_version(version), pg_catalog.to_jsonb(a)::text FROM account a WHERE id = :'id'"
slow=${row/ WHERE/, pg_advisory_xact_lock_shared(1) WHERE}
asked=$(mktemp)
trap 'rm -f "$asked"' EXIT

psql() {
    echo >>"$asked"
    command psql "$@"
}

unhex() { printf '%b' "$(sed 's/../\\x&/g' <<<"$1")"; }

accounts=$(place account)
echo ready
while read -r request first rest; do
    case $request in
    names)
        # a dot keeps newlines at the end
        domain=$(unhex "$first"; echo .)
        keys=()
        for word in $rest; do
            key=$(unhex "${word#-}"; echo .)
            keys+=("${key%.}")
        done
        where=$(place "${domain%.}")
        name "$where" "${keys[@]}"
        ;;
    read | slow)
        : >"$asked"
        if [ "$request" = read ]; then sql=$row; else sql=$slow; fi
        answer=$(read_through "$(name "$accounts" "$first")" "$sql" -v "id=$first")
        status=$?
        if [ $status -le 1 ]; then echo "$(wc -l <"$asked") $answer"; else echo "error $status"; fi
        ;;
    esac
done
