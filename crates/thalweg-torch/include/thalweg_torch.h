/* Thalweg's caching allocator: the C interface.
 *
 * PyTorch's C++ objects (csrc/) use it, and so can any other program that needs a caching allocator.
 *
 * Status. Every function that can fail returns a thalweg_status. THALWEG_OK is success. After any other status,
 * thalweg_error_message() returns a sentence for people, which is valid for the calling thread until its next failure. A
 * call that failed has changed nothing, unless its comment says otherwise. Nothing unwinds out of these functions: a bug of
 * the library is THALWEG_PANIC, with a report on standard error.
 *
 * Threads. Every function may be called from any thread at any time. None needs Python's interpreter lock, and none waits
 * for it, unless a history with stacks is recorded. The caller's current CUDA context is restored. A thread must not be
 * cancelled (pthread_cancel) or leave (pthread_exit) inside one of these functions, nor in a function of the caller's that
 * they call: the process is then aborted, since a thread that exits with locks held would leave the others waiting forever.
 * Deferred cancellation can occur while the driver waits, so disable it around the calls (pthread_setcancelstate).
 *
 * Fork. Until a device is open a process may fork, and parent and child may both continue. In a forked child of a process
 * that opened one, functions that destructors call do nothing, since inherited objects belong to the parent: thalweg_free,
 * thalweg_record_stream, thalweg_record_use, thalweg_release_pool, thalweg_empty_pool_cache, thalweg_pool_set_use_on_oom,
 * thalweg_close_shared and thalweg_stop_stacks. All other functions with an allocator return THALWEG_FORKED.
 *
 * A stream is its cudaStream_t as a number. 0 is the legacy default stream of the given device. A stream must be alive when
 * it is first named here and must not be destroyed while memory is used on it.
 *
 * Pools have PyTorch's names, pairs of numbers (MempoolId_t). (0, 0) is the shared pool.
 *
 * Functions of the caller's (filters, observers, sources) receive the `user` that was passed with them, may be called on any
 * thread, by several threads at a time, and must not throw. A `drop_user`, if there is one, is called once when the function
 * will no longer be called; it may be NULL.
 *
 * Sizes are in bytes.
 */
#ifndef THALWEG_TORCH_H
#define THALWEG_TORCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Incremented whenever the meaning of a part of this header changes. */
#define THALWEG_ABI_VERSION 2

typedef int32_t thalweg_status;
enum {
  THALWEG_OK = 0,
  THALWEG_OUT_OF_MEMORY = 1, /* out of memory: the caller may free memory and try again */
  THALWEG_INVALID = 2,       /* invalid arguments */
  THALWEG_CAPTURE = 3,       /* not possible during a capture */
  THALWEG_DRIVER = 4,        /* an error of the CUDA driver */
  THALWEG_PANIC = 5,         /* a bug of this library */
  THALWEG_FORKED = 6         /* a forked child of a process that uses CUDA */
};

typedef struct thalweg_allocator thalweg_allocator;
typedef struct thalweg_checkpoint thalweg_checkpoint;
typedef struct thalweg_shared thalweg_shared;

/* Accepts a piece of a text or a file. The bytes are valid only during the call. */
typedef void (*thalweg_write)(void *user, const uint8_t *bytes, size_t count);

/* THALWEG_ABI_VERSION of the library. */
uint32_t thalweg_abi_version(void);
/* The library's version, for people. */
const char *thalweg_version(void);
const char *thalweg_error_message(void);

/* ---- The allocator ------------------------------------------------------------------------------------------------------- */

/* Makes an allocator over devices of a kind: "cuda", or "sim" for simulated GPUs; with the suffix "+sanitizer", one that is
 * checked (see below). `settings` is a text in the grammar of PYTORCH_ALLOC_CONF, which overrides that variable; "" adds
 * nothing. If one of the two is invalid, the message has the position. No device is opened and CUDA is not initialised until
 * a device is first named. */
thalweg_status thalweg_open(const char *kind, const char *settings, thalweg_allocator **allocator);

/* Closes an allocator, and frees all memory that was allocated from it. Neither may be used from now on. A process that ends
 * need not call it. NULL is ignored. */
thalweg_status thalweg_close(thalweg_allocator *allocator);

/* Changes settings of all devices, including those that are opened later. Settings that `text` does not name are unchanged.
 * An invalid text changes nothing, and the message has the position. */
thalweg_status thalweg_set_settings(const thalweg_allocator *allocator, const char *text);

/* The settings of a device that are not at their defaults, in the same grammar. A device that is not open has those that it will
 * have, and is not opened. */
thalweg_status thalweg_settings(const thalweg_allocator *allocator, int32_t device, thalweg_write write, void *user);

/* The settings that PyTorch's snapshots name. UINT64_MAX means no limit, 0 divisions mean no rounding. */
typedef struct {
  double garbage_collection_threshold;
  uint64_t max_split_size_bytes;
  uint64_t roundup_power2_divisions[16]; /* for sizes below 2 MiB, below 4 MiB, and so on */
  uint8_t expandable_segments, release_lock_on_cudamalloc, graph_capture_record_stream_reuse;
} thalweg_configuration;
thalweg_status thalweg_configured(const thalweg_allocator *allocator, int32_t device, thalweg_configuration *configuration);

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

/* Allocates at least `bytes` for work on `stream`, at a multiple of 512; the address is 0 for 0 bytes. In a steady state the
 * driver is not called. A request that is not served from the cache may block. */
thalweg_status thalweg_malloc(const thalweg_allocator *allocator, int32_t device, uint64_t bytes, uint64_t stream,
                              uint64_t *address);

/* Allocates at an exact address, a multiple of 512 that is free in a segment of the stream. */
thalweg_status thalweg_malloc_at(const thalweg_allocator *allocator, int32_t device, uint64_t bytes, uint64_t stream,
                                 uint64_t address);

/* Frees memory, without waiting. Work of the block's own stream may still use it. 0 is ignored. */
thalweg_status thalweg_free(const thalweg_allocator *allocator, uint64_t address);

/* `stream` of `device` (of the block's own if that is negative) uses the memory: after it is freed, it is not reused before
 * the stream's work up to then is done. Memory that is not this allocator's is ignored, here and below, as in PyTorch. */
thalweg_status thalweg_record_stream(const thalweg_allocator *allocator, uint64_t address, int32_t device,
                                     uint64_t stream);

/* The work of `stream` so far is its last use of the memory, until the next call: an event is recorded there now, and reuse
 * waits only for it. */
thalweg_status thalweg_record_use(const thalweg_allocator *allocator, uint64_t address, int32_t device, uint64_t stream);

/* From now on the owner of `stream` may destroy it at any moment, without notice (torch.cuda.ExternalStream). It is passed
 * to the driver only in calls that name it here, and when memory is freed that was recorded for it. Its free memory stays
 * with it until memory is short; then the allocator waits for the device. */
thalweg_status thalweg_set_stream_transient(const thalweg_allocator *allocator, int32_t device, uint64_t stream);

typedef struct {
  uint64_t address, size_bytes, requested_bytes;
  int32_t device;
} thalweg_live_block;

/* The live block that contains `address`. */
thalweg_status thalweg_find_block(const thalweg_allocator *allocator, uint64_t address, thalweg_live_block *block);

/* Lets `accessor` read and write the memory of `device` that is mapped page by page, now and later. (Other memory only needs
 * cudaDeviceEnablePeerAccess.) */
thalweg_status thalweg_enable_peer_access(const thalweg_allocator *allocator, int32_t device, int32_t accessor);

/* Enables access between all open devices that support it, now and later: for callers that are not notified when PyTorch
 * needs it. */
thalweg_status thalweg_open_to_peers(const thalweg_allocator *allocator);

/* Releases cached memory of all open devices to the driver. Blocks until the devices are done with it. THALWEG_CAPTURE while
 * allocations go to a pool. */
thalweg_status thalweg_empty_cache(const thalweg_allocator *allocator);

/* The segment that the block at `address` is a part of. Memory of expandable segments has no such segment. */
thalweg_status thalweg_base_allocation(const thalweg_allocator *allocator, uint64_t address, uint64_t *base,
                                       uint64_t *bytes);

/* Approximately the largest request that could be served now without releasing cached memory. */
thalweg_status thalweg_cache_info(const thalweg_allocator *allocator, int32_t device, uint64_t *largest_bytes);

/* Never takes more than `fraction` (0 to 1) of the device's memory from the driver. */
thalweg_status thalweg_set_memory_fraction(const thalweg_allocator *allocator, int32_t device, double fraction);
thalweg_status thalweg_memory_fraction(const thalweg_allocator *allocator, int32_t device, double *fraction);

/* ---- Pools --------------------------------------------------------------------------------------------------------------- */

/* The source of a pool's segments. `allocate` returns an address that is a multiple of 512, or 0 if it has no memory.
 * `stream` is the first stream that will use the memory. */
typedef struct {
  void *user;
  void (*drop_user)(void *user);
  uint64_t (*allocate)(void *user, uint64_t bytes, uint64_t stream);
  void (*free)(void *user, uint64_t address, uint64_t bytes, uint64_t stream);
} thalweg_segment_source;

/* Makes a pool with one reference, or adds a reference. `source` may be NULL, and is only used when the pool is made. */
thalweg_status thalweg_pool_retain(const thalweg_allocator *allocator, int32_t device, uint64_t first, uint64_t second,
                                   const thalweg_segment_source *source);

/* Whether the pool's free blocks serve requests that go to no pool when memory is short; whether its blocks are never split.
 * Both apply to later requests. */
thalweg_status thalweg_pool_set_use_on_oom(const thalweg_allocator *allocator, int32_t device, uint64_t first,
                                           uint64_t second, uint8_t value);
thalweg_status thalweg_pool_set_no_split(const thalweg_allocator *allocator, int32_t device, uint64_t first,
                                         uint64_t second, uint8_t value);

/* The number of references; 0 if there is no such pool. */
thalweg_status thalweg_pool_use_count(const thalweg_allocator *allocator, int32_t device, uint64_t first, uint64_t second,
                                      uint64_t *count);

/* Adds a reference, and from now until thalweg_end_allocate_to_pool, requests on streams for which `filter` is not 0 get
 * memory from the pool. The filter is called with a lock of the allocator held, and must not call it. `drop_user` is called
 * also if this fails. A capture must be announced separately (thalweg_mark_capture_begin), because a program may use its own
 * pool without a capture (torch.cuda.use_mem_pool). */
thalweg_status thalweg_begin_allocate_to_pool(const thalweg_allocator *allocator, int32_t device, uint64_t first,
                                              uint64_t second, uint8_t (*filter)(void *user, uint64_t stream),
                                              void *user, void (*drop_user)(void *user));

/* Ends thalweg_begin_allocate_to_pool. The reference stays. */
thalweg_status thalweg_end_allocate_to_pool(const thalweg_allocator *allocator, int32_t device, uint64_t first,
                                            uint64_t second);

/* A capture is about to begin on the device, or has ended. In between, no event is used and no call waits. Memory that is
 * freed with uses on other streams is held until the end. Calls that would need to wait return THALWEG_CAPTURE. Captures are
 * counted; an end without a begin is THALWEG_INVALID. */
thalweg_status thalweg_mark_capture_begin(const thalweg_allocator *allocator, int32_t device);
thalweg_status thalweg_mark_capture_end(const thalweg_allocator *allocator, int32_t device);

/* Removes a reference. After the last one, the pool's memory may be reused by others as soon as it is free; the host then
 * waits for the device, since a graph in the pool may be running. */
thalweg_status thalweg_release_pool(const thalweg_allocator *allocator, int32_t device, uint64_t first, uint64_t second);

/* Releases the cached memory of the pools of this name to the driver, on all open devices, if no reference is left: a graph
 * in a pool needs its memory at its addresses. */
thalweg_status thalweg_empty_pool_cache(const thalweg_allocator *allocator, uint64_t first, uint64_t second);

/* Whether the pool's live blocks are exactly those that begin at these addresses. */
thalweg_status thalweg_check_pool(const thalweg_allocator *allocator, int32_t device, uint64_t first, uint64_t second,
                                  const uint64_t *addresses, size_t count, uint8_t *matches);

/* Takes a checkpoint of a pool. Blocks until frees that wait for other streams are done. The checkpoint holds no memory, and
 * must be dropped with thalweg_checkpoint_drop. */
thalweg_status thalweg_checkpoint_take(const thalweg_allocator *allocator, int32_t device, uint64_t first, uint64_t second,
                                       thalweg_checkpoint **checkpoint);

typedef void (*thalweg_on_block)(void *user, uint64_t address, uint64_t bytes);

/* Restores a pool to one of its checkpoints. All live blocks of the pool lose their memory: `on_freed` is called for each
 * (with 0 bytes), and they must not be freed. Blocks that are live in the checkpoint are live again: `on_allocated` is
 * called for each, and they must be freed. */
thalweg_status thalweg_checkpoint_restore(const thalweg_allocator *allocator, int32_t device,
                                          const thalweg_checkpoint *checkpoint, thalweg_on_block on_freed,
                                          thalweg_on_block on_allocated, void *user);
void thalweg_checkpoint_drop(thalweg_checkpoint *checkpoint);

/* ---- Other processes ----------------------------------------------------------------------------------------------------- */

/* Writes the handle by which another process can open the memory that contains `address`, in PyTorch's format, and the
 * offset of `address` in it. The block must live until no process has it open. */
thalweg_status thalweg_share(const thalweg_allocator *allocator, uint64_t address, thalweg_write write, void *user,
                             uint64_t *offset_bytes);

/* Opens such a handle of another process, or finds it already open, and writes the address at which the memory begins. */
thalweg_status thalweg_open_shared(const thalweg_allocator *allocator, int32_t device, const uint8_t *bytes, size_t count,
                                   thalweg_shared **shared, uint64_t *address);
/* Closes it. The last holder waits for the device, since pending work may read the memory. During a capture, which cannot
 * wait, the memory stays open until the next is closed. */
thalweg_status thalweg_close_shared(const thalweg_allocator *allocator, thalweg_shared *shared);

/* ---- Statistics ---------------------------------------------------------------------------------------------------------- */

typedef struct {
  int64_t current, peak, allocated, freed;
} thalweg_statistic;

typedef struct {
  thalweg_statistic all, small_pool, large_pool;
} thalweg_by_pool;

/* The names and meanings are those of torch.cuda.memory_stats. The last three are Thalweg's own: bytes that were freed and
 * wait for other streams, the number of waits of a stream for another, and the number of moved pages. */
typedef struct {
  thalweg_by_pool allocation, segment, active, inactive_split, allocated_bytes, reserved_bytes, active_bytes,
      inactive_split_bytes, requested_bytes;
  thalweg_statistic oversize_allocations, oversize_segments;
  int64_t num_alloc_retries, num_ooms, num_sync_all_streams, num_device_alloc, num_device_free, num_oom_rejections;
  int64_t max_split_size; /* -1: off */
  int64_t pending_use_bytes, num_cross_stream_waits, num_pages_moved;
} thalweg_statistics;

/* A device that is not open has zeros, and is not opened. */
thalweg_status thalweg_device_statistics(const thalweg_allocator *allocator, int32_t device, thalweg_statistics *statistics);
/* The memory that each private pool of the device has taken from the driver. The statistics are valid only during the call. */
thalweg_status thalweg_private_pool_statistics(const thalweg_allocator *allocator, int32_t device,
                                               void (*give)(void *user, uint64_t first, uint64_t second,
                                                            const thalweg_statistic *reserved_bytes),
                                               void *user);
/* The statistics under PyTorch's keys, one "key value" per line. */
thalweg_status thalweg_memory_stats(const thalweg_allocator *allocator, int32_t device, thalweg_write write, void *user);
/* The statistics as a table for people. */
thalweg_status thalweg_memory_summary(const thalweg_allocator *allocator, int32_t device, uint8_t abbreviated,
                                      thalweg_write write, void *user);
thalweg_status thalweg_reset_peak_statistics(const thalweg_allocator *allocator, int32_t device);
thalweg_status thalweg_reset_accumulated_statistics(const thalweg_allocator *allocator, int32_t device);

/* ---- Snapshots ----------------------------------------------------------------------------------------------------------- */

/* A segment. `stack` is a number that was passed to the recorder of stacks, or 0. */
typedef struct {
  int32_t device;
  uint8_t is_large, is_expandable;
  uint64_t address, total_bytes, requested_bytes, allocated_bytes, active_bytes, stream, pool_first, pool_second;
  uint32_t stack;
} thalweg_segment;

/* A block. If it is active and not allocated, it was freed and waits for other streams. */
typedef struct {
  uint64_t address, size_bytes, requested_bytes;
  uint8_t is_allocated, is_active;
  uint32_t stack;
} thalweg_block;

enum {
  THALWEG_ALLOC = 0,
  THALWEG_FREE_REQUESTED = 1,
  THALWEG_FREE_COMPLETED = 2,
  THALWEG_SEGMENT_ALLOC = 3,
  THALWEG_SEGMENT_FREE = 4,
  THALWEG_SEGMENT_MAP = 5,
  THALWEG_SEGMENT_UNMAP = 6,
  THALWEG_SNAPSHOT = 7,
  THALWEG_OOM = 8,
  THALWEG_ANNOTATE = 9
};

/* `time_us` is microseconds since 1970; 0 in events for observers. For THALWEG_OOM, `address` is the device's free memory.
 * The texts are valid only during the call. */
typedef struct {
  uint8_t action;
  int32_t device;
  uint64_t address, size_bytes, stream, pool_first, pool_second;
  int64_t time_us;
  uint32_t stack;
  const char *compile_context;
  const char *user_metadata;
  const char *internal_metadata; /* the allocator's own remark */
} thalweg_event;

typedef struct {
  int32_t device;
  int64_t time_us;
  const char *name;
  const char *stage; /* START or END */
} thalweg_annotation;

/* Functions that are called with each part: a segment, then its blocks, then the next segment; then the events, device by
 * device, the oldest first; then annotations. No lock is held. None may be NULL. */
typedef struct {
  void *user;
  void (*segment)(void *user, const thalweg_segment *segment);
  void (*block)(void *user, const thalweg_block *block);
  void (*event)(void *user, const thalweg_event *event);
  void (*annotation)(void *user, const thalweg_annotation *annotation);
} thalweg_visitor;

/* The state and the history of all open devices; only of one pool, unless that is (0, 0). */
thalweg_status thalweg_visit_snapshot(const thalweg_allocator *allocator, uint64_t first, uint64_t second,
                                      uint8_t include_traces, const thalweg_visitor *visitor);

/* A snapshot in the format of torch.cuda.memory._dump_snapshot, or as JSON. */
thalweg_status thalweg_write_snapshot(const thalweg_allocator *allocator, uint8_t as_json, thalweg_write write, void *user);

/* ---- What happens -------------------------------------------------------------------------------------------------------- */

/* The arguments of torch.cuda.memory._record_memory_history. `enabled`: 0 nothing, 1 the state, 2 all. `context`: 0 never, 1
 * state, 2 alloc, 3 all. `skip_actions`: a bit for each THALWEG_ action. */
typedef struct {
  uint8_t enabled, context, clear_history, compile_context, record_annotations;
  uint32_t skip_actions;
  uint64_t max_entries;
} thalweg_history_settings;

/* Records the history from now on, on all devices. Stacks are those of Python, if the process has an interpreter that knows
 * the allocating thread. */
thalweg_status thalweg_record_history(const thalweg_allocator *allocator, const thalweg_history_settings *settings);

/* A recorder of stacks for histories. `take` is called on the thread whose stack is taken, with no lock held, and keeps the
 * stack under an unused number; it returns 0 if there is no stack. `forget` is called, on any thread and with no lock held,
 * with numbers that no block and no event refers to any more. */
typedef struct {
  void *user;
  uint8_t (*take)(void *user, uint32_t stack);
  void (*forget)(void *user, uint32_t stack);
} thalweg_stack_recorder;

/* Makes this recorder keep stacks from now on; it cannot be removed. Without one, stacks are Python's. Call it once, before
 * a history with stacks is recorded. */
thalweg_status thalweg_record_stacks_by(const thalweg_allocator *allocator, const thalweg_stack_recorder *recorder);

/* Stops taking stacks, notifying observers of failures, and calling functions to free memory, and waits for the threads that
 * do so. Code that ends an interpreter must call this first, without holding its lock: Python kills threads that wait for an
 * ending interpreter by unwinding, which the library would not survive. */
thalweg_status thalweg_stop_stacks(const thalweg_allocator *allocator);

/* Adds an observer of each event, which cannot be removed. It is called with a lock of the allocator held, and must not call
 * the allocator. */
thalweg_status thalweg_observe_events(const thalweg_allocator *allocator,
                                      void (*told)(void *user, const thalweg_event *event), void *user);

/* Adds an observer of each request that fails for lack of memory, which cannot be removed. It is called with no lock held.
 * Without a limit, `allowed_bytes` is the device's memory. */
thalweg_status thalweg_observe_out_of_memory(const thalweg_allocator *allocator,
                                             void (*told)(void *user, int32_t device, uint64_t size_bytes,
                                                          uint64_t allowed_bytes, uint64_t free_bytes),
                                             void *user);

/* Adds an observer of requests that the memory fraction refuses without an attempt (throw_on_cudamalloc_oom). */
thalweg_status thalweg_observe_rejections(const thalweg_allocator *allocator,
                                          void (*told)(void *user, int32_t device, uint64_t size_bytes,
                                                       uint64_t allowed_bytes, uint64_t free_bytes),
                                          void *user);

/* Adds a function that is called to free memory when it is short, and returns whether it freed any. It may only call
 * thalweg_free. */
thalweg_status thalweg_add_free_memory_callback(const thalweg_allocator *allocator, uint8_t (*asked)(void *user),
                                                void *user);

/* The stack at which the live block that contains `address` was allocated; 0 if none was recorded. */
thalweg_status thalweg_stack_of_block(const thalweg_allocator *allocator, uint64_t address, uint32_t *stack);

/* Attaches a text to the live block that contains `address`, as a separate event. Texts are kept forever. */
thalweg_status thalweg_annotate_block(const thalweg_allocator *allocator, uint64_t address, const char *text);

/* The start, or the end, of a scope of the program, for histories of a device that keep them. */
thalweg_status thalweg_annotate_scope(const thalweg_allocator *allocator, int32_t device, const char *name,
                                      uint8_t is_start);

/* Sets the text that is attached to events of the calling thread from now on. Texts are kept forever. */
thalweg_status thalweg_set_user_metadata(const char *text);
thalweg_status thalweg_user_metadata(thalweg_write write, void *user);

/* The compiled region that the calling thread is in. */
thalweg_status thalweg_push_compile_context(const char *name);
thalweg_status thalweg_pop_compile_context(void);

/* The layouts that the library was built with. */
#ifdef __cplusplus
#define THALWEG_SIZE(type, bytes) static_assert(sizeof(type) == bytes, #type)
#else
#define THALWEG_SIZE(type, bytes) _Static_assert(sizeof(type) == bytes, #type)
#endif
THALWEG_SIZE(thalweg_live_block, 32);
THALWEG_SIZE(thalweg_segment_source, 32);
THALWEG_SIZE(thalweg_statistics, 1008);
THALWEG_SIZE(thalweg_segment, 80);
THALWEG_SIZE(thalweg_block, 32);
THALWEG_SIZE(thalweg_event, 88);
THALWEG_SIZE(thalweg_annotation, 32);
THALWEG_SIZE(thalweg_visitor, 40);
THALWEG_SIZE(thalweg_history_settings, 24);
THALWEG_SIZE(thalweg_stack_recorder, 24);

/* ---- The sanitizer --------------------------------------------------------------------------------------------------------
 *
 * An allocator of kind "cuda+sanitizer" or "sim+sanitizer" checks the uses of its memory, and finds unordered accesses,
 * memory that is freed while unrecorded work of another stream uses it, and memory that is used after it was freed. It knows
 * its own operations; other work must be reported here, on the thread that submits, in the order of submission. Nothing here
 * changes what a program does. With another kind all of these return THALWEG_INVALID. */

/* Sets the calling thread's location in its program, for memory that is allocated, recorded and freed from now on; a null
 * `operation` clears it. `file` may be null if the line is not known. */
thalweg_status thalweg_sanitizer_at(const thalweg_allocator *allocator, const char *operation, const char *file, uint32_t line);

/* Reports work that was, or is about to be, submitted to `stream`. `operands` are `count` numbers: for each operand its
 * address, the bytes of an element, 0 (read), 1 (written) or 2 (both), the number of dimensions, their sizes, and their
 * strides in elements. The call is ignored while the stream takes part in a capture, because no work runs then. */
thalweg_status thalweg_sanitizer_work(const thalweg_allocator *allocator, int32_t device, uint64_t stream, const char *operation,
                                      const char *file, uint32_t line, const int64_t *operands, size_t count);

/* Reports an operation on an event (cudaEvent_t as a number): 0, it was recorded on the stream; 1, the stream waits for it;
 * 2, the host saw it complete; 3, it was destroyed. Device and stream are ignored for the last two. */
thalweg_status thalweg_sanitizer_event(const thalweg_allocator *allocator, int32_t what, uint64_t event, int32_t device,
                                       uint64_t stream);

/* Reports that the host saw all work of the stream, or the device, so far complete. */
thalweg_status thalweg_sanitizer_stream_done(const thalweg_allocator *allocator, int32_t device, uint64_t stream);
thalweg_status thalweg_sanitizer_device_done(const thalweg_allocator *allocator, uint32_t device);

/* Sets the name of a stream in reports. */
thalweg_status thalweg_sanitizer_name_stream(const thalweg_allocator *allocator, int32_t device, uint64_t stream, const char *name);

/* Returns the findings after the first `from`: calls `write` once for each, with its text, and returns their number. */
thalweg_status thalweg_sanitizer_findings(const thalweg_allocator *allocator, uint64_t from, uint64_t *count, thalweg_write write,
                                          void *user);

/* ---- Kernels for PyTorch's operators -------------------------------------------------------------------------------------------- */

/* Registers Thalweg's kernels for operators of this process's PyTorch, through its stable C interface (2.10 and later).
 * `folder` is that of its libraries (torch/lib), which must be loaded; `key` is the dispatch key: "CUDA", or "CPU" for tests
 * of the interface; `operators` is a list of names, separated by commas, or "" for those of the table below, with
 * `everywhere` for all. If `everywhere` is not 0, calls are also taken outside of the table, where PyTorch's kernel is as
 * fast. Other calls go to PyTorch's kernel. On a GPU kernels are loaded on the allocator's devices; PyTorch's own allocator
 * may stay in use. The allocator must not be closed afterwards, and is used by all later calls. Registered kernels stay. */
thalweg_status thalweg_enable_kernels(const thalweg_allocator *allocator, const char *folder, const char *key, const char *operators,
                                      uint8_t everywhere);

/* Unregisters all kernels, so that PyTorch's are called again. */
thalweg_status thalweg_disable_kernels(const thalweg_allocator *allocator);

/* The table of kernels, one class of calls per line, separated by tabs: the operator; dtypes, separated by commas; the
 * minimum and maximum number of columns; the minimum number of elements; the speed of Thalweg's kernel and of PyTorch's in %
 * of a copy; 1 if it is registered, else 0; the numbers of the operator's calls that were taken and that were not; the
 * reason why no more are taken, or nothing. */
thalweg_status thalweg_kernels(const thalweg_allocator *allocator, thalweg_write write, void *user);

#ifdef __cplusplus
}
#endif
#endif
