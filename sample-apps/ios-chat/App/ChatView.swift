import ChatLogic
import Pannier
import SwiftUI

struct ChatView: View {
    @ObservedObject var chat: ChatViewModel
    @State private var draft = ""
    @State private var settings = ChatSettings()
    @State private var showsSettings = false

    private var screen: ChatScreen { chat.screen }

    var body: some View {
        NavigationView {
            VStack(spacing: 8) {
                if !screen.online { Text("Offline").font(.caption).foregroundColor(.secondary) }
                models
                plan
                lines
                if let notice = screen.notice { Text(notice).font(.footnote).foregroundColor(.red) }
                Text(screen.meter).font(.caption.monospacedDigit()).foregroundColor(.secondary)
                input
            }
            .padding()
            .navigationTitle("Pannier")
            .toolbar {
                Button("New") { chat.model.clear() }
                Button("Settings") { showsSettings = true }
            }
            .sheet(isPresented: $showsSettings) { settingsForm }
        }
    }

    private var models: some View {
        Menu(screen.chosen ?? "Choose a model") {
            ForEach(screen.models, id: \.name) { model in
                Button("\(model.name), \(model.bytes / 1_000_000) MB" + (screen.here.contains(model.name) ? "" : " (download)")) {
                    chat.model.choose(model.name)
                }
            }
        }
    }

    @ViewBuilder private var plan: some View {
        if let download = screen.download {
            ProgressView(value: download.share) { Text(download.line).font(.caption) }
        }
        if let plan = screen.plan {
            Text("Needs \(plan.peakBytes >> 20) MB for \(plan.context) tokens, about \(Int(plan.predictedDecodeTokensPerSecond)) tokens/s")
                .font(.caption)
        }
    }

    private var lines: some View {
        ScrollViewReader { reader in
            ScrollView {
                VStack(alignment: .leading, spacing: 12) {
                    ForEach(Array(screen.lines.enumerated()), id: \.offset) { index, line in
                        VStack(alignment: line.fromUser ? .trailing : .leading) {
                            Text(line.text).textSelection(.enabled)
                            if let badge = line.badge { Text(badge).font(.caption2).foregroundColor(.secondary) }
                            if let reason = line.reason { Text(reason).font(.caption2).foregroundColor(.secondary) }
                        }
                        .frame(maxWidth: .infinity, alignment: line.fromUser ? .trailing : .leading)
                        .id(index)
                    }
                }
            }
            .onChange(of: screen.lines.count) { count in reader.scrollTo(count - 1) }
        }
    }

    private var input: some View {
        HStack {
            TextField("Message", text: $draft).textFieldStyle(.roundedBorder)
            if screen.answering {
                Button("Stop") { chat.model.stop() }
            } else {
                Button("Send") {
                    chat.model.say(draft)
                    draft = ""
                }
                .disabled(draft.isEmpty || screen.plan?.fits != true)
            }
        }
    }

    private var settingsForm: some View {
        Form {
            Stepper("Memory: \(settings.budgetMebibytes) MB", value: $settings.budgetMebibytes, in: 64...4096, step: 64)
            Stepper("Context: \(settings.contextTokens) tokens", value: $settings.contextTokens, in: 256...8192, step: 256)
            Button("Apply") {
                chat.model.apply(settings)
                showsSettings = false
            }
        }
    }
}
