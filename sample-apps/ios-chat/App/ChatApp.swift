import ChatLogic
import Network
import Pannier
import SwiftUI

@main
struct ChatApp: App {
    @StateObject private var chat = ChatViewModel()

    var body: some Scene {
        WindowGroup { ChatView(chat: chat) }
    }
}

/// Shows SwiftUI the model's screen.
@MainActor
final class ChatViewModel: ObservableObject {
    @Published private(set) var screen: ChatScreen
    let model: ChatModel
    private let device = PannierDevice()
    private let network = NWPathMonitor()
    private var online = true

    init() {
        var isOnline: @MainActor () -> Bool = { true }
        model = ChatModel(
            pannier: device.pannier, store: device.store, isOnline: { isOnline() }, checkpoint: device.checkpoint("chat"))
        screen = model.screen
        isOnline = { [weak self] in self?.online ?? true }
        model.onChange = { [weak self] in self?.screen = $0 }
        network.pathUpdateHandler = { [weak self] path in
            Task { @MainActor in
                self?.online = path.status == .satisfied
                self?.model.refresh()
            }
        }
        network.start(queue: .main)
    }
}
