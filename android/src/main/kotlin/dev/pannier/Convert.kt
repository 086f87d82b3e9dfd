package dev.pannier

import dev.pannier.ffi.ContextOverflow
import dev.pannier.ffi.DownloadUpdate
import dev.pannier.ffi.EvictWhen as FfiEvictWhen
import dev.pannier.ffi.EvictionReport
import dev.pannier.ffi.GenerationNotice
import dev.pannier.ffi.GenerationSettings
import dev.pannier.ffi.KnownModel as FfiKnownModel
import dev.pannier.ffi.KvConfig
import dev.pannier.ffi.KvPolicy as FfiKvPolicy
import dev.pannier.ffi.MemoryReport
import dev.pannier.ffi.Message
import dev.pannier.ffi.MessageRole
import dev.pannier.ffi.ModelConfig
import dev.pannier.ffi.ModelDetails
import dev.pannier.ffi.ModelFile
import dev.pannier.ffi.ModelLifeState
import dev.pannier.ffi.PlanReport
import dev.pannier.ffi.PrecisionChoice
import dev.pannier.ffi.PressureLevel
import dev.pannier.ffi.SpeculationChoice
import dev.pannier.ffi.Stats
import dev.pannier.ffi.TokenReport
import dev.pannier.ffi.WeightViewReason
import java.io.File
import kotlin.time.Duration.Companion.milliseconds

// Between the generated types and the public ones. Nothing else knows both.

internal inline fun <T> rethrowingNow(work: () -> T): T = try {
    work()
} catch (e: dev.pannier.ffi.PannierException) {
    throw e.toPublic()
}

internal suspend inline fun <T> rethrowing(work: suspend () -> T): T = try {
    work()
} catch (e: dev.pannier.ffi.PannierException) {
    throw e.toPublic()
}

internal fun dev.pannier.ffi.PannierException.toPublic(): PannierException = when (this) {
    is dev.pannier.ffi.PannierException.NotFound -> PannierException.NotFound(reason)
    is dev.pannier.ffi.PannierException.InvalidModel -> PannierException.InvalidModel(reason)
    is dev.pannier.ffi.PannierException.Unsupported -> PannierException.Unsupported(reason)
    is dev.pannier.ffi.PannierException.InvalidArgument -> PannierException.InvalidArgument(reason)
    is dev.pannier.ffi.PannierException.OutOfBudget -> PannierException.OutOfBudget(reason, plan?.toPublic())
    is dev.pannier.ffi.PannierException.ContextOverflow ->
        PannierException.ContextOverflow(reason, tokens.toLong(), limit.toLong())
    is dev.pannier.ffi.PannierException.Template -> PannierException.Template(reason)
    is dev.pannier.ffi.PannierException.Cancelled -> PannierException.Cancelled(reason)
    is dev.pannier.ffi.PannierException.Busy -> PannierException.Busy(reason)
    is dev.pannier.ffi.PannierException.Closed -> PannierException.Closed(reason)
    is dev.pannier.ffi.PannierException.CrashLoop -> PannierException.CrashLoop(reason, deaths.toInt())
    is dev.pannier.ffi.PannierException.Io -> PannierException.Io(reason)
    is dev.pannier.ffi.PannierException.Network -> PannierException.Network(reason)
    is dev.pannier.ffi.PannierException.Internal -> PannierException.Internal(reason)
}

internal fun PlanReport.toPublic(): MemoryPlan = MemoryPlan(
    fits = fits,
    budgetBytes = budgetBytes.toLong(),
    context = context.toLong(),
    maxContext = maxContext.toLong(),
    residentBytes = residentBytes.toLong(),
    streamedBytesPerToken = streamedBytesPerToken.toLong(),
    kvBytes = kvBytes.toLong(),
    scratchBytes = scratchBytes.toLong(),
    draftBytes = draftBytes.toLong(),
    peakBytes = peakBytes.toLong(),
    fileBackedBytes = fileBackedBytes.toLong(),
    predictedDecodeTokensPerSecond = predictedDecodeTokS,
    predictedPrefillTokensPerSecond = predictedPrefillTokS,
    speculation = SpeculationForecast(
        speculation.draftLength.toInt(),
        speculation.tokensPerPass,
        speculation.decodeTokS,
        speculation.gain,
    ),
    boundBy = boundBy,
    notes = notes,
)

internal fun MemoryReport.toPublic(): MemoryUse = MemoryUse(
    budget = budget?.toLong(),
    used = used.toLong(),
    peak = peak.toLong(),
    processAnonymous = processAnonymous?.toLong(),
    processResident = processResident?.toLong(),
    systemAvailable = systemAvailable?.toLong(),
    systemTotal = systemTotal?.toLong(),
)

internal fun MemoryPressure.toFfi(): PressureLevel = when (this) {
    MemoryPressure.Normal -> PressureLevel.NORMAL
    MemoryPressure.Moderate -> PressureLevel.MODERATE
    MemoryPressure.Critical -> PressureLevel.CRITICAL
}

internal fun PressureLevel.toPublic(): MemoryPressure = when (this) {
    PressureLevel.NORMAL -> MemoryPressure.Normal
    PressureLevel.MODERATE -> MemoryPressure.Moderate
    PressureLevel.CRITICAL -> MemoryPressure.Critical
}

internal fun ModelOptions.toFfi(file: File): ModelConfig = ModelConfig(
    path = file.path,
    context = context?.positive("context"),
    threads = threads?.positive("threads"),
    prefillChunk = prefillChunk?.positive("prefillChunk"),
    kv = kv.toFfi(),
    precision = precision.toFfi(),
    draftPath = draft?.path,
    speculation = speculation?.toFfi(),
)

private fun KvOptions.toFfi(): KvConfig = KvConfig(
    kvType = type.ffi,
    policy = when (policy) {
        KvPolicy.KeepAll -> FfiKvPolicy.KeepAll
        is KvPolicy.Window -> FfiKvPolicy.Window(policy.recent.positive("recent"))
        is KvPolicy.Sinks -> FfiKvPolicy.Sinks(policy.sinks.positive("sinks"), policy.recent.positive("recent"))
        is KvPolicy.HeavyHitters -> FfiKvPolicy.HeavyHitters(
            policy.sinks.positive("sinks"),
            policy.recent.positive("recent"),
            policy.top.positive("top"),
        )
        is KvPolicy.Pages -> FfiKvPolicy.Pages(policy.tokens.positive("tokens"))
    },
    evict = when (evict) {
        EvictWhen.Asked -> FfiEvictWhen.Asked
        is EvictWhen.Above -> FfiEvictWhen.Above(evict.slack.notNegative("slack"))
    },
    prefixBytes = prefixBytes?.notNegative("prefixBytes"),
)

private fun WeightPrecision.toFfi(): PrecisionChoice = when (this) {
    WeightPrecision.Low -> PrecisionChoice.LOW
    WeightPrecision.Full -> PrecisionChoice.FULL
    WeightPrecision.Auto -> PrecisionChoice.AUTO
}

private fun Speculation.toFfi(): SpeculationChoice = when (this) {
    Speculation.Off -> SpeculationChoice.OFF
    Speculation.Auto -> SpeculationChoice.AUTO
    Speculation.Ngram -> SpeculationChoice.NGRAM
    Speculation.Draft -> SpeculationChoice.DRAFT
}

internal fun Overflow.toFfi(): ContextOverflow = when (this) {
    Overflow.Fail -> ContextOverflow.Fail
    is Overflow.DropOldest -> ContextOverflow.DropOldest(reserve.notNegative("reserve"))
}

internal fun EvictionReport.toPublic(): Eviction = Eviction(gone.toLong(), kept.toLong())

private fun dev.pannier.ffi.WeightView.toPublic(): WeightView = when (this) {
    dev.pannier.ffi.WeightView.LOW -> WeightView.Low
    dev.pannier.ffi.WeightView.FULL -> WeightView.Full
}

private fun WeightViewReason.toPublic(): ViewReason = when (this) {
    WeightViewReason.SHORT_PROMPT -> ViewReason.ShortPrompt
    WeightViewReason.LONG_PROMPT -> ViewReason.LongPrompt
    WeightViewReason.SURE -> ViewReason.Sure
    WeightViewReason.UNSURE -> ViewReason.Unsure
    WeightViewReason.ONLY_ONE -> ViewReason.OnlyOne
    WeightViewReason.OTHER -> ViewReason.Other
}

internal fun GenerationOptions.toFfi(): GenerationSettings = GenerationSettings(
    maxTokens = maxTokens?.notNegative("maxTokens"),
    stop = stop,
    temperature = temperature,
    topK = topK?.notNegative("topK"),
    topP = topP,
    minP = minP,
    repetitionPenalty = repetitionPenalty,
    seed = seed?.toULong(),
    topLogprobs = topLogprobs?.notNegative("topLogprobs"),
    deadlineMs = deadline?.inWholeMilliseconds?.coerceAtLeast(0)?.toULong(),
    precision = precision?.toFfi(),
    speculation = speculation?.toFfi(),
    draftLength = draftLength?.notNegative("draftLength"),
)

private fun Int.positive(what: String): UInt {
    if (this <= 0) throw PannierException.InvalidArgument("$what is $this, but must be positive")
    return toUInt()
}

private fun Int.notNegative(what: String): UInt {
    if (this < 0) throw PannierException.InvalidArgument("$what is $this, but must not be negative")
    return toUInt()
}

private fun Long.notNegative(what: String): ULong {
    if (this < 0) throw PannierException.InvalidArgument("$what is $this, but must not be negative")
    return toULong()
}

internal fun ChatMessage.toFfi(): Message = Message(
    when (role) {
        Role.System -> MessageRole.SYSTEM
        Role.User -> MessageRole.USER
        Role.Assistant -> MessageRole.ASSISTANT
        Role.Tool -> MessageRole.TOOL
    },
    content,
    fieldsJson,
)

internal fun Message.toPublic(): ChatMessage = ChatMessage(
    when (role) {
        MessageRole.SYSTEM -> Role.System
        MessageRole.USER -> Role.User
        MessageRole.ASSISTANT -> Role.Assistant
        MessageRole.TOOL -> Role.Tool
    },
    content,
    fieldsJson,
)

internal fun Stats.toPublic(): GenerationStats = GenerationStats(
    promptTokens = promptTokens.toLong(),
    cachedTokens = cachedTokens.toLong(),
    generatedTokens = generatedTokens.toLong(),
    timeToFirstToken = timeToFirstTokenMs?.milliseconds,
    totalTime = totalMs.milliseconds,
    prefillTokensPerSecond = prefillTokS,
    decodeTokensPerSecond = decodeTokS,
    peakAnonymousBytes = peakAnonBytes?.toLong(),
    kvType = KvType.entries.firstOrNull { it.ffi == kvType },
    evicted = evicted.toLong(),
    view = view.toPublic(),
    proposedTokens = proposedTokens.toLong(),
    acceptedTokens = acceptedTokens.toLong(),
    acceptanceRate = acceptanceRate,
    tokensPerPass = tokensPerPass,
    flashBytesPerToken = flashBytesPerToken,
)

internal fun dev.pannier.ffi.FinishReason.toPublic(): FinishReason = when (this) {
    dev.pannier.ffi.FinishReason.STOP -> FinishReason.Stop
    dev.pannier.ffi.FinishReason.STOP_STRING -> FinishReason.StopString
    dev.pannier.ffi.FinishReason.LENGTH -> FinishReason.Length
    dev.pannier.ffi.FinishReason.CONTEXT_FULL -> FinishReason.ContextFull
    dev.pannier.ffi.FinishReason.DEADLINE -> FinishReason.Deadline
}

internal fun dev.pannier.ffi.Answer.toPublic(): Answer = Answer(
    text = text,
    finishReason = finishReason.toPublic(),
    seed = seed.toLong(),
    source = when (source) {
        dev.pannier.ffi.AnswerSource.ON_DEVICE -> AnswerSource.OnDevice
        dev.pannier.ffi.AnswerSource.CLOUD -> AnswerSource.Cloud
    },
    confidence = confidence,
    stats = stats.toPublic(),
)

private fun TokenReport.toPublic(): Token =
    Token(id.toInt(), logprob, margin, entropy, top.map { TokenChoice(it.id.toInt(), it.logprob) })

internal fun GenerationNotice.toPublic(): NoticeKind = when (this) {
    is GenerationNotice.PrefixNotReused -> NoticeKind.PrefixNotReused(tokens.toLong())
    is GenerationNotice.MemoryPressure -> NoticeKind.PressureChanged(level.toPublic(), cacheBytes.toLong())
    is GenerationNotice.DraftReleased -> NoticeKind.DraftReleased(bytes.toLong())
    is GenerationNotice.Heat -> NoticeKind.HeatChanged(level.toPublic(), threads.toInt())
    is GenerationNotice.Evicted -> NoticeKind.Evicted(eviction.toPublic())
    is GenerationNotice.TurnsDropped -> NoticeKind.TurnsDropped(messages.toLong())
    is GenerationNotice.ViewChosen -> NoticeKind.ViewChosen(view.toPublic(), reason.toPublic())
    is GenerationNotice.IncompleteCharacter -> NoticeKind.IncompleteCharacter
    is GenerationNotice.Other -> NoticeKind.Other
}

internal fun dev.pannier.ffi.GenerationEvent.toPublic(): GenerationEvent = when (this) {
    is dev.pannier.ffi.GenerationEvent.Started -> GenerationEvent.Started(promptTokens.toLong(), cachedTokens.toLong())
    is dev.pannier.ffi.GenerationEvent.Prefill -> GenerationEvent.Prefill(done.toLong(), total.toLong())
    is dev.pannier.ffi.GenerationEvent.Text -> GenerationEvent.Text(text, tokens.map { it.toPublic() })
    is dev.pannier.ffi.GenerationEvent.Notice -> GenerationEvent.Notice(notice.toPublic())
    is dev.pannier.ffi.GenerationEvent.Completed -> GenerationEvent.Completed(answer.toPublic())
    is dev.pannier.ffi.GenerationEvent.Failed -> GenerationEvent.Failed(error.toPublic())
    is dev.pannier.ffi.GenerationEvent.Cancelled -> GenerationEvent.Cancelled(stats.toPublic())
}

internal fun ModelLifeState.toPublic(): ModelState = when (this) {
    is ModelLifeState.NotDownloaded -> ModelState.NotDownloaded
    is ModelLifeState.Downloading -> ModelState.Downloading(done.toLong(), total?.toLong())
    is ModelLifeState.Downloaded -> ModelState.Downloaded
    is ModelLifeState.Preparing -> ModelState.Preparing(fraction)
    is ModelLifeState.Loading -> ModelState.Loading(fraction)
    is ModelLifeState.Ready -> ModelState.Ready
    is ModelLifeState.Generating -> ModelState.Generating
    is ModelLifeState.Suspended -> ModelState.Suspended
    is ModelLifeState.Unloaded -> ModelState.Unloaded
    is ModelLifeState.Failed -> ModelState.Failed(reason)
}

internal fun ModelDetails.toPublic(): ModelInfo = ModelInfo(
    name = name,
    architecture = architecture,
    context = context.toLong(),
    trainedContext = trainedContext.toLong(),
    fileBytes = fileBytes.toLong(),
    threads = threads.toInt(),
    instructionSet = isa,
    notes = notes,
    loadTime = loadMs.milliseconds,
)

internal fun FfiKnownModel.toPublic(): KnownModel =
    KnownModel(name, about, licence, file, bytes.toLong(), sha256, instruct)

internal fun ModelFile.toPublic(): StoredModel = StoredModel(File(path), bytes.toLong(), name)

internal fun DownloadUpdate.toPublic(): DownloadEvent = when (this) {
    is DownloadUpdate.Started -> DownloadEvent.Started(resumedFrom.toLong(), total?.toLong())
    is DownloadUpdate.Progress -> DownloadEvent.Progress(
        done.toLong(),
        total?.toLong(),
        bytesPerSecond,
        remainingMs?.toLong()?.milliseconds,
    )
    is DownloadUpdate.Restarted -> DownloadEvent.Restarted(reason)
    is DownloadUpdate.Retrying -> DownloadEvent.Retrying(reason, afterMs.toLong().milliseconds)
    is DownloadUpdate.SourceFailed -> DownloadEvent.SourceFailed(reason)
    is DownloadUpdate.Verifying -> DownloadEvent.Verifying(done.toLong(), total.toLong())
}
