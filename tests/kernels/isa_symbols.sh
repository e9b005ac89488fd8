#!/bin/sh
# An instruction set's object defines its list of rows and nothing else: any function with a name of its own could be
# taken by the linker for generic code, and would then fault on an older processor. Usage: isa_symbols.sh NM ARCHIVE...
set -eu
nm=$1
shift
foreign=$("$nm" "$@" | awk 'NF == 3 && $2 ~ /[A-TV-Z]/ && $3 !~ /^cairn__kernel_rows_/ { print $3 }')
if [ -n "$foreign" ]; then
    echo "these leak from a file with instruction set flags:"
    echo "$foreign"
    exit 1
fi
echo "nothing leaks from $# archives"
