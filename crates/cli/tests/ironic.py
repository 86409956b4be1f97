"""Does with an image what Ironic's agent does on a machine that it deploys, by the agent's own code: downloads it,
compares its checksum, inspects it, and writes the disk. Takes the description of the image, as Ironic sends it, and the
file of the disk; prints what the inspection found."""

import json
import sys

from ironic_python_agent import config  # Registers the settings that the next ones read.
from ironic_python_agent import disk_utils
from ironic_python_agent.extensions import standby

config.CONF([], project="ironic-python-agent")
info, disk = json.loads(sys.argv[1]), sys.argv[2]
standby._validate_image_info(None, info)
standby._download_image(info)
image, is_raw = standby._image_location(info), info["disk_format"] == "raw"
found, size = disk_utils.get_and_validate_image_format(image, info["disk_format"])
disk_utils.populate_image(image, disk, is_raw=is_raw, source_format=found, out_format="raw", cache="directsync")
print(json.dumps({"format": found, "size": size}))
