"""The AR engine over SGLang: upstream's scheduler, KV memory and kernels, in this process."""
