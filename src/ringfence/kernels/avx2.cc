// The kernels for processors with AVX2. `setup.py` says how this file is compiled.
#include "kernels.h"
