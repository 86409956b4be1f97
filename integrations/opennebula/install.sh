#!/bin/sh
# Puts the drivers' scripts where OpenNebula looks for them, and prints what to add to its settings. It changes no file
# that is there. Usage: install.sh [FOLDER], where FOLDER is that of the remotes (/var/lib/one/remotes).
set -eu

remotes=${1:-/var/lib/one/remotes}
here=$(cd "$(dirname "$0")" && pwd)

tm='clone ln mkimage mkswap context mv mvds cpds delete resize snap_create snap_create_live snap_revert snap_delete
    premigrate postmigrate failmigrate prebackup prebackup_live postbackup postbackup_live restore monitor monitor_ds'
datastore='cp mkfs stat clone rm monitor snap_delete snap_revert snap_flatten export restore increment_flatten backup
    backup_cancel ls'
market='monitor import delete'

if [ ! -d "$remotes" ]; then
    echo "install.sh: there is no folder $remotes; is OpenNebula's front-end on this machine?" >&2
    exit 1
fi
for driver in tm datastore market; do
    folder=$remotes/$driver/diskcast
    mkdir -p "$folder"
    install -m 755 "$here/action.sh" "$folder/.action"
    eval "actions=\$$driver"
    for action in $actions; do
        # A copy, and no link: hosts get them by rsync.
        cp -p "$folder/.action" "$folder/$action"
    done
    rm "$folder/.action"
done
cat <<'TEXT'
The scripts are in place. Nothing else was changed. What is left to do, in this order:

1. The server, as oneadmin, who reads and writes the repository, and the token of the hosts:

   install -d -o oneadmin /var/lib/diskcast /etc/diskcast
   su oneadmin -c 'diskcast serve --repo /var/lib/diskcast/repository --state /var/lib/diskcast/state'   # keep it running
   su oneadmin -c 'umask 077; diskcast token --write --state /var/lib/diskcast/state >/etc/diskcast/one.token'

2. /etc/one/diskcast.toml, readable by oneadmin:

   [repositories.main]
   location = "/var/lib/diskcast/repository"
   server = "https://FRONTEND:7717"
   token_file = "/etc/diskcast/one.token"

3. /etc/one/oned.conf: append `diskcast` to the lists in these arguments (`local` in the third one, if it is missing,
   is what a datastore with TM_MAD_SYSTEM="local" needs),

   TM_MAD         -d ...,diskcast
   DATASTORE_MAD  -d ...,diskcast -s ...,diskcast
   MARKET_MAD     -m ...,diskcast

   and add

   TM_MAD_CONF = [ NAME = "diskcast", LN_TARGET = "SYSTEM", CLONE_TARGET = "SYSTEM", SHARED = "NO",
       DS_MIGRATE = "YES", DS_LIVE_MIGRATE = "YES", DS_MIGRATE_SNAP = "YES", ALLOW_ORPHANS = "YES",
       DRIVER = "qcow2", TM_MAD_SYSTEM = "ssh", LN_TARGET_SSH = "SYSTEM", CLONE_TARGET_SSH = "SYSTEM",
       DISK_TYPE_SSH = "FILE", PERSISTENT_SNAPSHOTS = "NO" ]
   DS_MAD_CONF = [ NAME = "diskcast", REQUIRED_ATTRS = "", PERSISTENT_ONLY = "NO", MARKETPLACE_ACTIONS = "export",
       DATASTORE_CAPACITY_CHECK = "NO" ]
   MARKET_MAD_CONF = [ NAME = "diskcast", REQUIRED_ATTRS = "", APP_ACTIONS = "monitor", PUBLIC = "yes" ]
   INHERIT_IMAGE_ATTR     = "DISKCAST_COPY"
   INHERIT_DATASTORE_ATTR = "DISKCAST_COPY"

4. /etc/one/vmm_exec/vmm_execrc: append `kvm-diskcast qemu-diskcast` to LIVE_DISK_SNAPSHOTS, for snapshots of machines
   that run.

5. systemctl restart opennebula; su oneadmin -c 'onehost sync -f'

6. Datastores, where 100 is what the first command prints:

   printf 'NAME=diskcast\nTYPE=SYSTEM_DS\nTM_MAD=diskcast\n' | onedatastore create
   printf 'NAME=images\nDS_MAD=diskcast\nTM_MAD=diskcast\nDISKCAST_REPOSITORY=main\n' | onedatastore create
   printf 'NAME=backups\nTYPE=BACKUP_DS\nDS_MAD=diskcast\nTM_MAD=-\nDISKCAST_REPOSITORY=main\n' | onedatastore create

   For disks as logical volumes, with volume_group in diskcast.toml:

   printf '%s\n' NAME=volumes DS_MAD=diskcast TM_MAD=diskcast DISKCAST_REPOSITORY=main DISK_TYPE=BLOCK \
       DISKCAST_COPY=volume | onedatastore create

7. An image of what the repository has, which users may name if it has the label opennebula=yes:

   printf 'NAME=web\nPATH="diskcast:web"\n' | oneimage create -d images

Hosts need diskcast, qemu-img and, in the path of oneadmin's ssh, /usr/sbin; and ssh for oneadmin without a password.
docs/opennebula.md says more.
TEXT
