// Which of our instruction sets this processor and its operating system have. Compiled for any x86-64 processor.

extern "C" int ringfence_has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

extern "C" int ringfence_has_avx512() {
  return ringfence_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
