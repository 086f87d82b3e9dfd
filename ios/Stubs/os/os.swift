// See Stubs/UIKit.
public func os_proc_available_memory() -> Int { 1 << 30 }
