# The shell's reader of doc/clients.md before the history checker; conformance.md tells what is said. It reads one key at a time,
# from one Redis or from a cluster.

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 test/clients/extract.py "$directory" || exit 2
. "$directory/reader.bash"

row="SELECT fence.row_version(version), to_jsonb(item)::text FROM item WHERE id = :'id'"
place=

psql() { echo >"$directory/asked"; command psql "$@"; }

where() {               # where LAYOUT ADDRESSES
    local first=${2%%,*}
    case $1,$first in
    shards,*) echo 'conformance.bash: redis-cli knows no shards' >&2; exit 2 ;;
    *,/*) REDIS="-s $first" ;;
    *) REDIS="-h ${first%:*} -p ${first##*:}" ;;
    esac
    [ "$1" != cluster ] || REDIS="$REDIS -c"
}

read_one() {            # read_one KEY
    local payload status
    [ -n "$place" ] || place=$(place item 2>/dev/null)
    [ -n "$place" ] || { printf 'error\tPostgreSQL does not answer\n'; return; }
    rm -f "$directory/asked"
    payload=$(read_through "$(name "$place" "$1")" "$row" -v "id=$1" 2>/dev/null)
    status=$?
    [ $status -ne 1 ] || payload=null
    if [ $status -gt 1 ]; then
        printf 'error\tstatus %s\n' $status
    else
        printf '%s\t%s\n' "$([ -e "$directory/asked" ] && echo read || echo hit)" "$payload"
    fi
}

printf 'ready\tread\n'
while IFS=$'\t' read -r request first second; do
    case $request in
    redis) where "$first" "$second"; echo ok ;;
    postgres)
        export PGAPPNAME=$second PGCONNECT_TIMEOUT=2
        for setting in $first; do
            case $setting in
            host=*) export PGHOST=${setting#*=} ;;
            port=*) export PGPORT=${setting#*=} ;;
            user=*) export PGUSER=${setting#*=} ;;
            dbname=*) export PGDATABASE=${setting#*=} ;;
            esac
        done
        place=
        echo ok
        ;;
    read) read_one "$first" ;;
    esac
done
