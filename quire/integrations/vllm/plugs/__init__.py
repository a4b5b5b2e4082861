"""Parts of Quire behind the sockets of vLLM's own offloading. They need no vLLM; what vLLM names is above."""
