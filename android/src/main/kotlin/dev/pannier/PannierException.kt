package dev.pannier

/**
 * What went wrong. Messages are one line for a developer; they hold no text of a conversation and no path of the user's,
 * so they can be logged.
 */
public sealed class PannierException(message: String) : Exception(message) {
    /** There is no such model, file, or known name. */
    public class NotFound internal constructor(message: String) : PannierException(message)

    /** The file is damaged, or not a model. */
    public class InvalidModel internal constructor(message: String) : PannierException(message)

    /** A model, a template or an option that the engine cannot do. */
    public class Unsupported internal constructor(message: String) : PannierException(message)

    /** An argument out of its range. */
    public class InvalidArgument internal constructor(message: String) : PannierException(message)

    /**
     * The memory budget does not hold this.
     *
     * @property plan what the model needs, and what would fit; `null` when a running generation hit the budget.
     */
    public class OutOfBudget internal constructor(message: String, public val plan: MemoryPlan?) :
        PannierException(message)

    /**
     * The conversation is longer than the context. Nothing was cut off and nothing was computed.
     *
     * @property tokens tokens that were needed.
     * @property limit tokens that the context holds.
     */
    public class ContextOverflow internal constructor(message: String, public val tokens: Long, public val limit: Long) :
        PannierException(message)

    /** The chat template of the model does not take this conversation. */
    public class Template internal constructor(message: String) : PannierException(message)

    /** Cancelled, by the app, or because the model or the session was closed or unloaded meanwhile. */
    public class Cancelled internal constructor(message: String) : PannierException(message)

    /** Something else is running that excludes this: a session does one thing at a time. */
    public class Busy internal constructor(message: String) : PannierException(message)

    /** The model or session was closed before the call. */
    public class Closed internal constructor(message: String) : PannierException(message)

    /**
     * The app died repeatedly while it loaded this model. Ask the user before [Model.load] with `force`.
     *
     * @property deaths how often.
     */
    public class CrashLoop internal constructor(message: String, public val deaths: Int) : PannierException(message)

    /** The system refused a file operation, or the disk is full. */
    public class Io internal constructor(message: String) : PannierException(message)

    /** The network, or the server. What has arrived of a download is kept. */
    public class Network internal constructor(message: String) : PannierException(message)

    /** A bug of the engine. The process and the user's data live on. */
    public class Internal internal constructor(message: String) : PannierException(message)
}
