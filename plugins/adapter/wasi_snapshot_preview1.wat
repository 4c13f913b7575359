;; Answers WASI's first preview inside of a component, for Go and C. A plugin has no files, arguments, environment or sockets; its
;; clock counts calls and sleeps, its random numbers follow from a fixed seed, and lines of standard output and error go to
;; `espalier:base/log`, as `info` and `error`. Nothing but `log` is called, and by writing alone: all else works while
;; the host waits for memory from the guest. The file beside it is made of it by a test: engine/authoring/tests/adapter.rs.
(module $wasi_snapshot_preview1
  (import "espalier:base/log@0.1.0" "write"
    (func $log (param $level i32) (param $text i32) (param $length i32) (param i32 i32 i32)))
  (import "env" "memory" (memory 0))

  ;; Nanoseconds; above 0, which Go takes for a clock that does not work.
  (global $clock (mut i64) (i64.const 1000000000))
  ;; Never 0.
  (global $random (mut i64) (i64.const 0x9E3779B97F4A7C15))
  ;; 64 KiB of the guest, once it has given them: a line of standard output in the lower half, one of standard error in the upper.
  (global $page (mut i32) (i32.const 0))
  (global $stdout (mut i32) (i32.const 0))
  (global $stderr (mut i32) (i32.const 0))
  ;; How far Go's last words are: 1 after their first line, 2 within the first goroutine, 3 within another one.
  (global $dump (mut i32) (i32.const 0))
  ;; Whether the next line of a goroutine is left out.
  (global $skip (mut i32) (i32.const 0))

  ;; Errors of WASI: 0 success, 8 bad descriptor, 52 not supported, 58 operation not supported, 76 not capable.

  ;; The number of bytes of the character of UTF-8 at $at, before $end; 0 where there is none.
  (func $character (param $at i32) (param $end i32) (result i32)
    (local $first i32) (local $second i32) (local $size i32)
    (local.set $first (i32.load8_u (local.get $at)))
    (if (i32.lt_u (local.get $first) (i32.const 0x80)) (then (return (i32.const 1))))
    (if (i32.or (i32.lt_u (local.get $first) (i32.const 0xC2)) (i32.gt_u (local.get $first) (i32.const 0xF4)))
      (then (return (i32.const 0))))
    (local.set $size (i32.add (i32.const 2)
      (i32.add (i32.ge_u (local.get $first) (i32.const 0xE0)) (i32.ge_u (local.get $first) (i32.const 0xF0)))))
    (if (i32.gt_u (i32.add (local.get $at) (local.get $size)) (local.get $end)) (then (return (i32.const 0))))
    (local.set $second (i32.load8_u offset=1 (local.get $at)))
    ;; Longer than need be, a half of a surrogate pair, or beyond the last character.
    (if (i32.or
          (i32.or
            (i32.and (i32.eq (local.get $first) (i32.const 0xE0)) (i32.lt_u (local.get $second) (i32.const 0xA0)))
            (i32.and (i32.eq (local.get $first) (i32.const 0xED)) (i32.gt_u (local.get $second) (i32.const 0x9F))))
          (i32.or
            (i32.and (i32.eq (local.get $first) (i32.const 0xF0)) (i32.lt_u (local.get $second) (i32.const 0x90)))
            (i32.and (i32.eq (local.get $first) (i32.const 0xF4)) (i32.gt_u (local.get $second) (i32.const 0x8F)))))
      (then (return (i32.const 0))))
    (local.set $end (i32.add (local.get $at) (local.get $size)))
    (loop $next
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (if (i32.eq (local.get $at) (local.get $end)) (then (return (local.get $size))))
      (br_if $next (i32.eq (i32.and (i32.load8_u (local.get $at)) (i32.const 0xC0)) (i32.const 0x80))))
    (i32.const 0))

  ;; Writes $length bytes at $text as one line; bytes that are not UTF-8 become `?`.
  (func $line (param $level i32) (param $text i32) (param $length i32)
    (local $at i32) (local $end i32) (local $size i32)
    (local.set $at (local.get $text))
    (local.set $end (i32.add (local.get $text) (local.get $length)))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (local.set $size (call $character (local.get $at) (local.get $end)))
        (if (i32.eqz (local.get $size))
          (then (i32.store8 (local.get $at) (i32.const 0x3F)) (local.set $size (i32.const 1))))
        (local.set $at (i32.add (local.get $at) (local.get $size)))
        (br $next)))
    (call $log (local.get $level) (local.get $text) (local.get $length)
      (i32.const 0) (i32.const 0) (i32.const 0)))

  ;; Writes a line of standard error. When Go dies it prints each goroutine, by a line for a function and one for its place: of
  ;; those, only the first goroutine's are kept, and not the functions of Go's runtime and of the SDK.
  (func $error_line (param $text i32) (param $length i32)
    (local $start i64)
    (if (global.get $skip)
      (then (global.set $skip (i32.const 0)) (return)))
    (if (i32.ge_u (local.get $length) (i32.const 8))
      (then
        (local.set $start (i64.load (local.get $text)))
        ;; `panic: `, `fatal error: `
        (if (i32.or
              (i64.eq (i64.and (local.get $start) (i64.const 0x00FFFFFFFFFFFFFF)) (i64.const 0x00203A63696E6170))
              (i64.eq (local.get $start) (i64.const 0x7265206C61746166)))
          (then (global.set $dump (i32.const 1))))
        (if (global.get $dump)
          (then
            ;; `goroutine `
            (if (i64.eq (local.get $start) (i64.const 0x6E6974756F726F67))
              (then (global.set $dump (select (i32.const 3) (i32.const 2) (i32.gt_u (global.get $dump) (i32.const 1))))))
            ;; `runtime.`, `espalier/` and `espalier:`
            (if (i32.or
                  (i64.eq (local.get $start) (i64.const 0x2E656D69746E7572))
                  (i64.eq (local.get $start) (i64.const 0x7265696C61707365)))
              (then
                (if (i32.eq (global.get $dump) (i32.const 2)) (then (global.set $skip (i32.const 1)) (return)))))))))
    (if (i32.ne (global.get $dump) (i32.const 3))
      (then (call $line (i32.const 3) (local.get $text) (local.get $length)))))

  ;; Ends a line of an output.
  (func $end_line (param $error i32) (param $text i32) (param $length i32)
    (if (local.get $error)
      (then (call $error_line (local.get $text) (local.get $length)))
      (else (call $line (i32.const 1) (local.get $text) (local.get $length)))))

  ;; Ends the lines that have no end yet.
  (func $flush
    (if (global.get $stdout)
      (then (call $end_line (i32.const 0) (global.get $page) (global.get $stdout)) (global.set $stdout (i32.const 0))))
    (if (global.get $stderr)
      (then
        (call $end_line (i32.const 1) (i32.add (global.get $page) (i32.const 0x8000)) (global.get $stderr))
        (global.set $stderr (i32.const 0)))))

  ;; 64 KiB of the guest's memory, which it does not use: lines are collected there, where they come in pieces. Memory that is
  ;; added here would be taken for its own by Go, which grows memory as if nobody else did.
  (func (export "espalier_lines") (param $at i32) (global.set $page (local.get $at)))

  ;; Adds bytes to the line of an output.
  (func $add (param $error i32) (param $from i32) (param $length i32)
    (local $start i32) (local $used i32) (local $byte i32)
    ;; A guest without such memory: a write is a line.
    (if (i32.eqz (global.get $page))
      (then
        (if (i32.eqz (local.get $length)) (then (return)))
        (if (i32.eq (i32.load8_u (i32.sub (i32.add (local.get $from) (local.get $length)) (i32.const 1))) (i32.const 0x0A))
          (then (local.set $length (i32.sub (local.get $length) (i32.const 1)))))
        (call $end_line (local.get $error) (local.get $from) (local.get $length)) (return)))
    (local.set $start (i32.add (global.get $page) (i32.shl (local.get $error) (i32.const 15))))
    (local.set $used (select (global.get $stderr) (global.get $stdout) (local.get $error)))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $length)))
        (local.set $byte (i32.load8_u (local.get $from)))
        (if (i32.or (i32.eq (local.get $byte) (i32.const 0x0A)) (i32.eq (local.get $used) (i32.const 0x8000)))
          (then
            (call $end_line (local.get $error) (local.get $start) (local.get $used))
            (local.set $used (i32.const 0))))
        (if (i32.ne (local.get $byte) (i32.const 0x0A))
          (then
            (i32.store8 (i32.add (local.get $start) (local.get $used)) (local.get $byte))
            (local.set $used (i32.add (local.get $used) (i32.const 1)))))
        (local.set $from (i32.add (local.get $from) (i32.const 1)))
        (local.set $length (i32.sub (local.get $length) (i32.const 1)))
        (br $next)))
    (if (local.get $error)
      (then (global.set $stderr (local.get $used)))
      (else (global.set $stdout (local.get $used)))))

  (func (export "fd_write") (param $fd i32) (param $pieces i32) (param $count i32) (param $written i32) (result i32)
    (local $total i32) (local $length i32)
    (if (i32.gt_u (i32.sub (local.get $fd) (i32.const 1)) (i32.const 1)) (then (return (i32.const 8))))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (local.set $length (i32.load offset=4 (local.get $pieces)))
        (call $add (i32.eq (local.get $fd) (i32.const 2)) (i32.load (local.get $pieces)) (local.get $length))
        (local.set $total (i32.add (local.get $total) (local.get $length)))
        (local.set $pieces (i32.add (local.get $pieces) (i32.const 8)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $next)))
    (i32.store (local.get $written) (local.get $total))
    (i32.const 0))

  ;; On an output: ends its line. The SDKs call it when an export returns.
  (func $sync (param $fd i32) (result i32)
    (if (i32.gt_u (local.get $fd) (i32.const 2)) (then (return (i32.const 8))))
    (call $flush)
    (i32.const 0))
  (export "fd_sync" (func $sync))
  (export "fd_datasync" (func $sync))

  ;; 2 is what Go and the SDK exit with when they have said why.
  (func (export "proc_exit") (param $status i32)
    (call $flush)
    (if (i32.and (i32.ne (local.get $status) (i32.const 2)) (i32.ne (global.get $page) (i32.const 0)))
      (then
        ;; `exit was called`
        (i64.store (global.get $page) (i64.const 0x7361772074697865))
        (i64.store offset=8 (global.get $page) (i64.const 0x2E64656C6C616320))
        (call $line (i32.const 3) (global.get $page) (i32.const 15))))
    (unreachable))

  (func (export "clock_time_get") (param $id i32) (param i64) (param $time i32) (result i32)
    (global.set $clock (i64.add (global.get $clock) (i64.const 1000)))
    (i64.store (local.get $time) (global.get $clock))
    (i32.const 0))

  (func (export "clock_res_get") (param $id i32) (param $resolution i32) (result i32)
    (i64.store (local.get $resolution) (i64.const 1000))
    (i32.const 0))

  ;; Timers pass at once: the clock goes on to each of them, and it has come. Anything else never comes.
  (func (export "poll_oneoff") (param $wanted i32) (param $events i32) (param $count i32) (param $came i32) (result i32)
    (local $until i64) (local $n i32)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (if (i32.eqz (i32.load8_u offset=8 (local.get $wanted)))
          (then
            (local.set $until (i64.load offset=24 (local.get $wanted)))
            (if (i32.eqz (i32.and (i32.load16_u offset=40 (local.get $wanted)) (i32.const 1)))
              (then (local.set $until (i64.add (global.get $clock) (local.get $until)))))
            (if (i64.gt_u (local.get $until) (global.get $clock)) (then (global.set $clock (local.get $until))))
            (i64.store (local.get $events) (i64.load (local.get $wanted)))
            (i64.store offset=8 (local.get $events) (i64.const 0))
            (i64.store offset=16 (local.get $events) (i64.const 0))
            (i64.store offset=24 (local.get $events) (i64.const 0))
            (local.set $events (i32.add (local.get $events) (i32.const 32)))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))))
        (local.set $wanted (i32.add (local.get $wanted) (i32.const 48)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $next)))
    (i32.store (local.get $came) (local.get $n))
    (i32.const 0))

  ;; Xorshift.
  (func (export "random_get") (param $to i32) (param $length i32) (result i32)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $length)))
        (global.set $random (i64.xor (global.get $random) (i64.shl (global.get $random) (i64.const 13))))
        (global.set $random (i64.xor (global.get $random) (i64.shr_u (global.get $random) (i64.const 7))))
        (global.set $random (i64.xor (global.get $random) (i64.shl (global.get $random) (i64.const 17))))
        (i64.store8 (local.get $to) (i64.shr_u (global.get $random) (i64.const 32)))
        (local.set $to (i32.add (local.get $to) (i32.const 1)))
        (local.set $length (i32.sub (local.get $length) (i32.const 1)))
        (br $next)))
    (i32.const 0))

  ;; The three standard streams look like a terminal: C then writes each line as it comes.
  (func (export "fd_fdstat_get") (param $fd i32) (param $stat i32) (result i32)
    (if (i32.gt_u (local.get $fd) (i32.const 2)) (then (return (i32.const 8))))
    (i64.store (local.get $stat) (i64.const 2))
    (i64.store offset=8 (local.get $stat) (i64.const 0))
    (i64.store offset=16 (local.get $stat) (i64.const 0))
    (i32.const 0))

  ;; Standard input is at its end.
  (func (export "fd_read") (param $fd i32) (param $pieces i32) (param $count i32) (param $read i32) (result i32)
    (if (local.get $fd) (then (return (i32.const 8))))
    (i32.store (local.get $read) (i32.const 0))
    (i32.const 0))

  ;; No arguments, no variables.
  (func $none (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (export "args_sizes_get" (func $none))
  (export "environ_sizes_get" (func $none))
  (func $nothing (param i32 i32) (result i32) (i32.const 0))
  (export "args_get" (func $nothing))
  (export "environ_get" (func $nothing))
  (func (export "sched_yield") (result i32) (i32.const 0))
  (func (export "fd_fdstat_set_flags") (param i32 i32) (result i32) (i32.const 0))
  (func (export "fd_close") (param $fd i32) (result i32)
    (select (i32.const 8) (i32.const 0) (i32.gt_u (local.get $fd) (i32.const 2))))

  ;; No files and no folders: a descriptor is never one.
  (func $bad_2 (param i32 i32) (result i32) (i32.const 8))
  (export "fd_prestat_get" (func $bad_2))
  (export "fd_filestat_get" (func $bad_2))
  (export "fd_tell" (func $bad_2))
  (export "fd_renumber" (func $bad_2))
  (export "sock_shutdown" (func $bad_2))
  (func $bad_3 (param i32 i32 i32) (result i32) (i32.const 8))
  (export "fd_prestat_dir_name" (func $bad_3))
  (export "path_create_directory" (func $bad_3))
  (export "path_remove_directory" (func $bad_3))
  (export "path_unlink_file" (func $bad_3))
  (export "sock_accept" (func $bad_3))
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) (select (i32.const 8) (i32.const 70) (i32.gt_u (local.get 0) (i32.const 2))))
  (func (export "fd_filestat_set_size") (param i32 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_times") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_rights") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_advise") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_allocate") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_readdir") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func $bad_pieces (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (export "fd_pread" (func $bad_pieces))
  (export "fd_pwrite" (func $bad_pieces))
  (func $bad_5 (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (export "path_filestat_get" (func $bad_5))
  (export "path_symlink" (func $bad_5))
  (export "sock_send" (func $bad_5))
  (func $bad_6 (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (export "path_readlink" (func $bad_6))
  (export "path_rename" (func $bad_6))
  (export "sock_recv" (func $bad_6))
  (func (export "path_link") (param i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_set_times") (param i32 i32 i32 i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "path_open") (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32) (i32.const 8))
)
