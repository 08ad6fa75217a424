// The kernels for processors with AVX-512. `setup.py` says how this file is compiled.
#include "kernels.h"
