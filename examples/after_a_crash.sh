#!/usr/bin/env bash
# The walk of docs/walk.md as a script: look at a crashed store, count what a broker would lose, mend a copy, look again, go back.
#
#     examples/after_a_crash.sh [STORE [FOLDER]]
#
# Works on a copy of STORE (sample_store if none is given) in FOLDER (a new one). Needs rmqctl on the PATH, with the extra sql.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
store=${1:-$here/sample_store}
work=${2:-$(mktemp -d)}
cp -a --sparse=always "$store" "$work/store"
cd "$work"

# Most commands end with 3 where there is something to find: that is an answer, no failure.
ask() { "$@" || [[ $? -eq 3 ]]; }

echo "== what would a broker's start do?"
ask rmqctl recover --predict -s store -q -o json >prediction.json
cut=$(python3 -c 'import json; print(json.load(open("prediction.json"))["prediction"]["max_phy_offset"] or 0)')
echo "the log would end at $cut"

echo "== which topics would lose how much?"
ask rmqctl sql -q -s store -o csv \
  "select topic, count(*) messages, sum(size_bytes) bytes from messages where phy_offset >= $cut group by 1 order by 2 desc, 1"

echo "== everything as Parquet, damage included"
ask rmqctl export "$work/parquet" -s store -q -o json >export.json
python3 -c 'import json; print(json.load(open("export.json"))["rows"], "rows")'

echo "== mend the copy, and ask again"
ask rmqctl recover --apply -s store -q -o json >applied.json
python3 -c 'import json; d = json.load(open("applied.json")); print("kept", d["kept_messages"], "lost", d["losses"]["lost_messages"])'
rmqctl recover --predict -s store -q -o json >after.json
rmqctl check -s store -q -o json >check.json && echo "a broker can be started"

echo "== and back"
rmqctl undo --apply -s store -q -o json >undone.json
diff -r --exclude=.rmqctl "$store" store && echo "as before"
