"""What data sheets say of GPUs, for machines that are described and not asked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from topologies.errors import TopologyError


@dataclass(frozen=True)
class GpuModel:
    name: str  # as its driver gives it, without the vendor
    architecture: str  # "sm_90" (compute capability 9.0) or AMD's "gfx942"
    memory_bytes_per_s: float  # its memory, read and written (NVIDIA's and AMD's data sheets)
    pci_ids: tuple[str, ...] = ()  # device ids, as the PCI ID repository (pci-ids.ucw.cz) lists them

    @property
    def vendor(self) -> str:
        return "NVIDIA" if self.architecture.startswith("sm_") else "AMD"

    @property
    def product(self) -> str:
        """Its name without form and memory, in lower-case words."""
        return re.sub(r"-(sxm|pcie|nvl).*", "", self.name.lower()).replace("-", " ")


MODELS = (
    GpuModel("K80", "sm_37", 240e9, ("0x102d",)),
    GpuModel("P40", "sm_61", 346e9, ("0x1b38",)),
    GpuModel("P100-PCIE", "sm_60", 732e9, ("0x15f7", "0x15f8")),
    GpuModel("P100-SXM2", "sm_60", 732e9, ("0x15f9",)),
    GpuModel("V100-SXM2", "sm_70", 900e9, ("0x1db1", "0x1db5")),
    GpuModel("V100-SXM3", "sm_70", 981e9, ("0x1db8",)),
    GpuModel("V100-PCIE", "sm_70", 900e9, ("0x1db4", "0x1db6")),
    GpuModel("T4", "sm_75", 320e9, ("0x1eb8",)),
    GpuModel("A100-SXM4-40GB", "sm_80", 1555e9, ("0x20b0",)),
    GpuModel("A100-SXM4-80GB", "sm_80", 2039e9, ("0x20b2",)),
    GpuModel("A100-PCIE-40GB", "sm_80", 1555e9, ("0x20f1",)),
    GpuModel("A100-PCIE-80GB", "sm_80", 1935e9, ("0x20b5",)),
    GpuModel("A30", "sm_80", 933e9, ("0x20b7",)),
    GpuModel("RTX-3090", "sm_86", 936e9, ("0x2204",)),
    GpuModel("RTX-A6000", "sm_86", 768e9, ("0x2230",)),
    GpuModel("A40", "sm_86", 696e9, ("0x2235",)),
    GpuModel("A10", "sm_86", 600e9, ("0x2236",)),
    GpuModel("A10G", "sm_86", 600e9, ("0x2237",)),
    GpuModel("RTX-4090", "sm_89", 1008e9, ("0x2684",)),
    GpuModel("L40", "sm_89", 864e9, ("0x26b5",)),
    GpuModel("L40S", "sm_89", 864e9, ("0x26b9",)),
    GpuModel("L4", "sm_89", 300e9, ("0x27b8",)),
    GpuModel("H100-SXM", "sm_90", 3350e9, ("0x2330",)),
    GpuModel("H100-PCIE", "sm_90", 2000e9, ("0x2331",)),
    GpuModel("H100-NVL", "sm_90", 3938e9, ("0x2321",)),
    GpuModel("H20", "sm_90", 4000e9, ("0x2329",)),
    GpuModel("GH200", "sm_90", 4000e9, ("0x2342",)),
    GpuModel("H200", "sm_90", 4800e9, ("0x2335",)),
    GpuModel("B200", "sm_100", 8000e9, ("0x2901",)),
    GpuModel("GB200", "sm_100", 8000e9, ("0x2941",)),
    GpuModel("RTX-5090", "sm_120", 1792e9, ("0x2b85",)),
    GpuModel("GB10", "sm_121", 273e9, ("0x2e12",)),
    GpuModel("MI50", "gfx906", 1024e9, ("0x66a0", "0x66a1")),
    GpuModel("MI100", "gfx908", 1229e9, ("0x738c",)),
    GpuModel("MI250X", "gfx90a", 1638e9, ("0x7408", "0x740c")),
    GpuModel("MI210", "gfx90a", 1638e9, ("0x740f",)),
    GpuModel("MI300X", "gfx942", 5300e9, ("0x74a1",)),
    GpuModel("MI325X", "gfx942", 6000e9, ("0x74a5",)),
)

LINK_BYTES_PER_S = {
    **{"sm_60": 20e9, "sm_70": 25e9, "sm_75": 25e9, "sm_80": 25e9, "sm_86": 14.0625e9, "sm_90": 25e9},
    **{"sm_100": 50e9, "sm_103": 50e9, "gfx906": 46e9, "gfx908": 46e9, "gfx90a": 50e9, "gfx942": 64e9},
    "gfx950": 76.8e9,
}
"""Architecture -> one NVLink or Infinity Fabric link, one direction, raw.

Sources: data sheets of P100 to B300; RTX A6000 and A40: 112.5 GB/s both ways over four links; MI50 to MI355X:
half of a link's peak.
"""


MOST_LINKS = {"sm_60": 4, "sm_70": 6, "sm_80": 12, "sm_86": 4, "sm_90": 18, "sm_100": 18, "sm_103": 18}
"""Architecture -> NVLinks of a GPU (data sheets)."""

OTHER_PRODUCTS = {
    "sm_35": r"k20[cmsx]?|k40[cmst]?|titan black",
    "sm_52": r"m4|m6|m10|m40|m60|gtx titan x|gtx 9[5-8]0( ti)?",
    "sm_61": r"p4|p6|titan x|titan xp|gtx 10[5-8]0( ti)?|quadro p\d000",
    "sm_70": r"v100s|titan v|gv100",
    "sm_120": r"rtx pro \d000|rtx 50\d0( ti)?",
    "sm_89": r"l2|l20|l40g|rtx 40\d0( ti)?|rtx \d{4}( sff)? ada",
    "sm_80": r"a100x?|a30x|a800",
    "sm_86": r"a2|a16|a10m|a[2456]\d00|rtx 30\d0( ti)?",
    "sm_75": r"t4g|t\d00|t1000|titan rtx|rtx 20\d0( super)?( ti)?|gtx 16\d0( super| ti)?|rtx [34568]000",
    "sm_90": r"h800|gh100",
    "sm_100": r"b100",
    "sm_103": r"g?b300",
}
"""Architecture -> words in the names of products that are not in `MODELS`, the first that fits
(developer.nvidia.com/cuda-gpus, and its list of older GPUs)."""

OLD_NAMES = {"gfx910": "gfx90a", "gfx940": "gfx942"}  # what dumps of early RCCL call them


def model_named(name: str) -> GpuModel:
    """The product, whatever the case and the vendor before its name; TopologyError where it is not known."""
    wanted = name.lower().removeprefix("nvidia ").removeprefix("amd instinct ").replace(" ", "-")
    for model in MODELS:
        if model.name.lower() == wanted:
            return model
    raise TopologyError(f"GPU {name!r} is not known; known: {', '.join(model.name for model in MODELS)}")


@cache
def compute_capability(name: str) -> float | None:
    """Of the product that a machine file or a driver names, as "NVIDIA GeForce RTX 2080 Ti" has 7.5; None
    where the name tells nothing, and of other makers' products."""
    words = re.sub(r"[^a-z0-9]+", " ", name.lower())
    patterns = [(model.architecture, model.product) for model in MODELS] + list(OTHER_PRODUCTS.items())
    found = next((to for to, pattern in patterns if re.search(rf"\b({pattern})\b", words)), "")
    return int(found.removeprefix("sm_")) / 10 if found.startswith("sm_") else None


def model_of(pci_id: str, architecture: str) -> GpuModel | None:
    """The product with that PCI device id, if it is of that architecture."""
    found = (m for m in MODELS if pci_id.lower() in m.pci_ids and m.architecture == architecture)
    return next(found, None)


def slowest(architecture: str) -> GpuModel:
    """The product with the slowest memory of that architecture, or of all where none is known."""
    same = [model for model in MODELS if model.architecture == architecture]
    return min(same or MODELS, key=lambda model: model.memory_bytes_per_s)
