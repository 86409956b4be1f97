#!/bin/sh
# Every script of the drivers: install.sh gives it a name for each action. The folder says which driver, the name says
# which action. `exec`, so that whoever ends the script ends the work.
here=$(dirname "$0")
driver=$(basename "$(dirname "$here")")
DISKCAST_TM=$here/..
export DISKCAST_TM
exec "${DISKCAST:-diskcast}" opennebula "$driver" "$(basename "$0")" "$@"
