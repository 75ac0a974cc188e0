/* "No CUDA device": what the CUDA build of torch asks when it is imported. */
int cudaGetDeviceCount(int *n) {
  if (n) *n = 0;
  return 100; /* cudaErrorNoDevice */
}
int cudaDriverGetVersion(int *version) {
  if (version) *version = 0;
  return 0;
}
int cudaRuntimeGetVersion(int *version) {
  if (version) *version = 12080;
  return 0;
}
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
