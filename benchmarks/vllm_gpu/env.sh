# Sourced before anything is run: paths, and a vLLM that asks nobody on the network.
export KIT=${KIT:-$HOME/quire-kit}
export PYTHONPATH=$KIT/quire/benchmarks/vllm_gpu/boot:$KIT/front:$KIT/quire
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
export VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_USE_DEEP_GEMM=0
export VLLM_CACHE_ROOT=$KIT/cache TRITON_CACHE_DIR=$KIT/triton VLLM_LOGGING_LEVEL=${VLLM_LOGGING_LEVEL:-WARNING}
export TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=2 PYTHONUNBUFFERED=1
for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do # libcuda.so.1 in a container, should ldconfig not know it
    [ -d $folder ] && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
cd $KIT/quire
