package dev.pannier

import com.sun.jna.Callback
import com.sun.jna.CallbackThreadInitializer
import com.sun.jna.Native
import dev.pannier.ffi.uniffiCallbackInterfaceAdmissionRule
import dev.pannier.ffi.uniffiCallbackInterfaceCloudConsent
import dev.pannier.ffi.uniffiCallbackInterfaceCloudRedactor
import dev.pannier.ffi.uniffiCallbackInterfaceCloudTransport
import dev.pannier.ffi.uniffiCallbackInterfaceDeviceProbe
import dev.pannier.ffi.uniffiCallbackInterfaceDownloadSink
import dev.pannier.ffi.uniffiCallbackInterfaceHybridSink
import dev.pannier.ffi.uniffiCallbackInterfaceLoadSink
import dev.pannier.ffi.uniffiCallbackInterfaceStateObserver
import dev.pannier.ffi.uniffiCallbackInterfaceTokenSink
import dev.pannier.ffi.uniffiRustFutureContinuationCallbackImpl

/**
 * What threads of the engine are to the JVM: daemons, known from their first call to their end.
 *
 * Without being told, JNA makes a thread known for each call and forgets it afterwards. That costs a `Thread` for each token. It also
 * tries to do so after a call inside of another one (an app that is resumed on a thread of the engine and calls it again), which the JVM
 * refuses, and JNA prints a line for it.
 */
private val prepared: Unit = CallbackThreadInitializer(true, false, "pannier-engine").let {
    // All that the engine calls on threads of its own.
    for (call in listOf<Callback>(
        uniffiRustFutureContinuationCallbackImpl,
        uniffiCallbackInterfaceTokenSink.onEvent,
        uniffiCallbackInterfaceLoadSink.onProgress,
        uniffiCallbackInterfaceStateObserver.onState,
        uniffiCallbackInterfaceDownloadSink.onUpdate,
        uniffiCallbackInterfaceHybridSink.onUpdate,
        uniffiCallbackInterfaceDeviceProbe.condition,
        uniffiCallbackInterfaceAdmissionRule.route,
        uniffiCallbackInterfaceCloudConsent.allows,
        uniffiCallbackInterfaceCloudRedactor.redact,
        uniffiCallbackInterfaceCloudTransport.name,
        uniffiCallbackInterfaceCloudTransport.prepare,
        uniffiCallbackInterfaceCloudTransport.send,
        uniffiCallbackInterfaceCloudTransport.cancel,
    )) {
        Native.setCallbackThreadInitializer(call, it)
    }
}

/** Has its effect once. To be called before the engine is: JNA asks for it when the engine is told whom to call. */
internal fun prepareEngineThreads(): Unit = prepared
