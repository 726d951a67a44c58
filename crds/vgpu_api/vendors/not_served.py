"""Other vendors' resources from HAMi's documents that this project does not serve.

See docs/design/vendors.md.
"""

from __future__ import annotations

from collections.abc import Mapping

_OF_VENDORS_PLUGIN = "devices that the vendor's own device plugin hands out undivided"
_OF_OLD_ILUVATAR = (
    "a part of an Iluvatar GPU, which is iluvatar.ai/MR-V100-vgpu and the like by now"
)
_FORMER_PARTS_OF_ENFLAME = "a part of an Enflame GCU, which is enflame.com/drs-gcu by now"
NOT_SERVED: Mapping[str, str] = {
    "enflame.com/vgcu": _FORMER_PARTS_OF_ENFLAME,
    "enflame.com/vgcu-percentage": _FORMER_PARTS_OF_ENFLAME,
    "cambricon.com/mlu": f"{_OF_VENDORS_PLUGIN}; a part is cambricon.com/vmlu",
    "huawei.com/Ascend910": f"{_OF_VENDORS_PLUGIN}; a part is huawei.com/Ascend910A and the like",
    "huawei.com/npu-memory": "memory of huawei.com/Ascend910; of a part it is "
    "huawei.com/Ascend910A-memory and the like",
    "hygon.com/dcu": f"{_OF_VENDORS_PLUGIN}; a part is hygon.com/dcunum",
    "iluvatar.ai/vcuda-core": _OF_OLD_ILUVATAR,
    "iluvatar.ai/vcuda-memory": _OF_OLD_ILUVATAR,
}
"""The description of each resource in a warning."""
