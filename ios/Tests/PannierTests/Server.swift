import Foundation

#if canImport(Glibc)
import Glibc
private let stream = Int32(SOCK_STREAM.rawValue)
#else
import Darwin
private let stream = SOCK_STREAM
#endif

/// An HTTP server on this machine that does what a test asks for: one thread per connection, one request each.
final class Server: @unchecked Sendable {
    /// How a path is served.
    struct Reply: Sendable {
        var body = Data()
        /// The connection is cut after so many bytes of a response.
        var cutAfter: Int?
        /// Microseconds between pieces of 64 KiB.
        var pause: UInt32 = 0
    }

    let port: Int
    private let listener: Int32
    private let reply: @Sendable (_ path: String) -> Reply?

    init(_ reply: @escaping @Sendable (_ path: String) -> Reply?) throws {
        self.reply = reply
        listener = socket(AF_INET, stream, 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
        var size = socklen_t(MemoryLayout<sockaddr_in>.size)
        let handle = listener
        let bound = withUnsafeMutablePointer(to: &address) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
                bind(handle, address, size) == 0 && listen(handle, 16) == 0 && getsockname(handle, address, &size) == 0
            }
        }
        guard bound else { throw POSIXError(.EADDRNOTAVAIL) }
        port = Int(UInt16(bigEndian: address.sin_port))
        // Writing to a connection that was closed is an error here, not a signal.
        signal(SIGPIPE, SIG_IGN)
        let server = self
        Thread.detachNewThread { server.serve() }
    }

    func stop() {
        // Wakes the thread that accepts.
        shutdown(listener, Int32(SHUT_RDWR))
        close(listener)
    }

    func url(_ path: String) -> URL { URL(string: "http://127.0.0.1:\(port)/\(path)")! }

    private func serve() {
        while true {
            let connection = accept(listener, nil, nil)
            if connection < 0 { return }
            Thread.detachNewThread { [self] in
                answer(connection)
                close(connection)
            }
        }
    }

    private func answer(_ connection: Int32) {
        var request = Data()
        var buffer = [UInt8](repeating: 0, count: 4096)
        while request.range(of: Data("\r\n\r\n".utf8)) == nil {
            let count = read(connection, &buffer, buffer.count)
            if count <= 0 { return }
            request.append(contentsOf: buffer.prefix(count))
        }
        let lines = String(decoding: request, as: UTF8.self).components(separatedBy: "\r\n")
        let path = lines[0].split(separator: " ").dropFirst().first.map { String($0.dropFirst()) } ?? ""
        guard let reply = reply(path) else {
            write(connection, Data("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".utf8))
            return
        }
        let range = lines.first { $0.lowercased().hasPrefix("range: bytes=") }
        let from = range.flatMap { Int($0.dropFirst(13).prefix(while: \.isNumber)) } ?? 0
        let size = reply.body.count
        var head = from > 0 ? "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes \(from)-\(size - 1)/\(size)\r\n" : "HTTP/1.1 200 OK\r\n"
        head += "ETag: \"v1\"\r\nContent-Length: \(size - from)\r\nConnection: close\r\n\r\n"
        guard write(connection, Data(head.utf8)) else { return }
        let end = reply.cutAfter.map { min(size, from + $0) } ?? size
        var at = from
        while at < end {
            let next = min(end, at + 65536)
            guard write(connection, reply.body.subdata(in: at..<next)) else { return }
            at = next
            if reply.pause > 0 { usleep(reply.pause) }
        }
    }

    @discardableResult
    private func write(_ connection: Int32, _ data: Data) -> Bool {
        data.withUnsafeBytes { bytes in
            var sent = 0
            while sent < bytes.count {
                let count = send(connection, bytes.baseAddress! + sent, bytes.count - sent, 0)
                if count <= 0 { return false }
                sent += count
            }
            return true
        }
    }
}
