"""The names of aggregators: built-ins, the entry-point group `scaling.aggregators`, or `module:Class`.

Nothing here imports an aggregator, so what reads results knows the names without torch.
"""

from scaling.registry import Registry

_CLASSES = {
    "native": "none:NoExchange no_op:NoOp all_reduce:AllReduce",
    "ring": "ring:Ring",
    "tree": "tree:Tree",
    "schedule": "schedule:AnySchedule",
    "sharded": "zero1:Zero1 zero2:Zero2 zero_redundancy_optimizer:ZeroRedundancy fsdp2:Fsdp2 hsdp:Hsdp",
    "host": "host_serial:HostSerial host_parallel:HostParallel",
    "one_bit": "one_bit:OneBit",
    "one_bit_flat": "one_bit_flat:OneBitFlat",
    "one_bit_adam": "one_bit_momentum:OneBitMomentum one_bit_adam:OneBitAdam",
    "two_bit": "two_bit:TwoBit",
    "sign": "sign:Sign ef_sign:EfSign",
    "qsgd": "qsgd:Qsgd",
    "top_k": "top_k:TopK",
    "power_sgd": "power_sgd:PowerSgd",
    "power_sgd_hook": "power_sgd_hook:PowerSgdHook",
    "sixteen_bit": "fp16:Fp16 bf16:Bf16",
    "over_mpi": "mpi:Mpi mpi_one_bit:MpiOneBit",
    "over_horovod": "horovod:Horovod horovod_optimizer:HorovodOptimizer",
    "presets.caffe": "caffe:Caffe caffe_nccl:CaffeNccl",
    "presets.cntk": "cntk:Cntk cntk_32bit:Cntk32Bit",
    "presets.mxnet": "mxnet_device:MxnetDevice mxnet_local:MxnetLocal mxnet_tree:MxnetTree",
    "presets.tensorflow": "tensorflow:TensorFlow tf_replicated:TfReplicated",
    "presets.tf_spec": "tf_spec:TfSpec",
    "presets.torch7": "torch_dpt:TorchDpt torch_cpu:TorchCpu",
}  # module of scaling.aggregators -> name:class

BUILT_IN = {
    name: f"scaling.aggregators.{module}:{cls}"
    for module, classes in _CLASSES.items()
    for name, cls in (word.split(":") for word in classes.split())
}

REGISTRY = Registry("aggregator", "scaling.aggregators", BUILT_IN)
