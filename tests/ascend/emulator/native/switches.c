/* Settings of the runtime that change nothing on the emulated device. Each takes what it
   takes and answers "done"; nobody reads a value from them. Whatever is neither here nor
   emulated aborts with its name. */
#define SWITCH(name) \
  int name(void) { return 0; }

SWITCH(aclrtSetDeviceSatMode)
SWITCH(aclrtSetStreamFailureMode)
SWITCH(aclrtSetOpWaitTimeout)
SWITCH(aclrtSetOpExecuteTimeOut)
SWITCH(aclrtSetOpExecuteTimeOutV2)
SWITCH(aclSetCompileopt)
SWITCH(aclrtCtxSetSysParamOpt)
SWITCH(aclrtSetSysParamOpt)
SWITCH(aclrtSetStreamOverflowSwitch)
SWITCH(aclrtSetStreamAttribute)
SWITCH(aclrtPeekAtLastError)
SWITCH(aclrtGetLastError)
SWITCH(aclrtUseStreamResInCurrentThread)
SWITCH(aclrtUnuseStreamResInCurrentThread)
SWITCH(aclrtHostUnregister)

/* Logs and profiles: nobody reads them. The level "0 of nothing enabled" is the answer. */
SWITCH(CheckLogLevel)
SWITCH(DlogRecord)
SWITCH(aclAppLog)
SWITCH(MsprofRegisterCallback)
SWITCH(MsprofReportApi)
SWITCH(MsprofReportCompactInfo)
SWITCH(MsprofReportAdditionalInfo)

/* How older compilers register kernels when their library is loaded. */
SWITCH(rtDevBinaryRegister)
SWITCH(rtFunctionRegister)
