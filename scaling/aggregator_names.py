"""The names of aggregators: built-ins, the entry-point group `scaling.aggregators`, or `module:Class`.

Nothing here imports an aggregator, so what reads results knows the names without torch.
"""

from scaling.registry import Registry

BUILT_IN = {
    "none": "scaling.aggregators.native:NoExchange",
    "no_op": "scaling.aggregators.native:NoOp",
    "all_reduce": "scaling.aggregators.native:AllReduce",
    "ring": "scaling.aggregators.schedule:Ring",
    "tree": "scaling.aggregators.schedule:Tree",
    "schedule": "scaling.aggregators.schedule:AnySchedule",
    "zero1": "scaling.aggregators.sharded:Zero1",
    "zero2": "scaling.aggregators.sharded:Zero2",
    "zero_redundancy_optimizer": "scaling.aggregators.sharded:ZeroRedundancy",
    "fsdp2": "scaling.aggregators.sharded:Fsdp2",
    "hsdp": "scaling.aggregators.sharded:Hsdp",
    "host_serial": "scaling.aggregators.host:HostSerial",
    "host_parallel": "scaling.aggregators.host:HostParallel",
    "one_bit": "scaling.aggregators.one_bit:OneBit",
    "one_bit_flat": "scaling.aggregators.one_bit_flat:OneBitFlat",
    "one_bit_momentum": "scaling.aggregators.one_bit_adam:OneBitMomentum",
    "one_bit_adam": "scaling.aggregators.one_bit_adam:OneBitAdam",
    "two_bit": "scaling.aggregators.two_bit:TwoBit",
    "sign": "scaling.aggregators.sign:Sign",
    "ef_sign": "scaling.aggregators.sign:EfSign",
    "qsgd": "scaling.aggregators.qsgd:Qsgd",
    "top_k": "scaling.aggregators.top_k:TopK",
    "power_sgd": "scaling.aggregators.power_sgd:PowerSgd",
    "power_sgd_hook": "scaling.aggregators.power_sgd_hook:PowerSgdHook",
    "fp16": "scaling.aggregators.sixteen_bit:Fp16",
    "bf16": "scaling.aggregators.sixteen_bit:Bf16",
    "mpi": "scaling.aggregators.over_mpi:Mpi",
    "mpi_one_bit": "scaling.aggregators.over_mpi:MpiOneBit",
    "horovod": "scaling.aggregators.over_horovod:Horovod",
    "horovod_optimizer": "scaling.aggregators.over_horovod:HorovodOptimizer",
    "caffe": "scaling.aggregators.presets.caffe:Caffe",
    "caffe_nccl": "scaling.aggregators.presets.caffe:CaffeNccl",
    "cntk": "scaling.aggregators.presets.cntk:Cntk",
    "cntk_32bit": "scaling.aggregators.presets.cntk:Cntk32Bit",
    "mxnet_device": "scaling.aggregators.presets.mxnet:MxnetDevice",
    "mxnet_local": "scaling.aggregators.presets.mxnet:MxnetLocal",
    "mxnet_tree": "scaling.aggregators.presets.mxnet:MxnetTree",
    "tensorflow": "scaling.aggregators.presets.tensorflow:TensorFlow",
    "tf_replicated": "scaling.aggregators.presets.tensorflow:TfReplicated",
    "tf_spec": "scaling.aggregators.presets.tf_spec:TfSpec",
    "torch_dpt": "scaling.aggregators.presets.torch7:TorchDpt",
    "torch_cpu": "scaling.aggregators.presets.torch7:TorchCpu",
}

REGISTRY = Registry("aggregator", "scaling.aggregators", BUILT_IN)
