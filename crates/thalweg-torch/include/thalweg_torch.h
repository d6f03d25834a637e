/* Thalweg's caching allocator: the C interface.
 *
 * PyTorch's C++ objects (csrc/) stand on it, and any other program that wants a caching allocator may.
 *
 * Status. Every function that can fail returns a thalweg_status. THALWEG_OK is success. After anything else,
 * thalweg_error_message() has a sentence for people, for the calling thread, until its next failure. A call that failed has
 * changed nothing, unless its comment says otherwise. Nothing unwinds out of these functions: a bug of the library is
 * THALWEG_PANIC, with a report on the standard error.
 *
 * Threads. Every function may be called from any thread at any time. None needs Python's interpreter lock, and none waits for
 * it, unless a history with stacks is recorded. The caller's current CUDA context is the same afterwards as before. A thread
 * must not be cancelled (pthread_cancel) or leave (pthread_exit) inside one of these functions, nor in a function of the caller's that
 * they call: the process is aborted then, since a thread that goes without its locks would leave the others waiting for ever.
 * Cancellation that is deferred strikes where the driver waits, so disable it around the calls (pthread_setcancelstate).
 *
 * Fork. Until a device is open a process may fork, and parent and child may go on. In a forked child of the process that opened one,
 * what destructors call does nothing, since what a child inherits is its parent's: thalweg_free, thalweg_record_stream,
 * thalweg_record_use, thalweg_release_pool, thalweg_empty_pool_cache, thalweg_pool_set_use_on_oom, thalweg_close_shared and
 * thalweg_stop_stacks. Everything else that is given the allocator is THALWEG_FORKED.
 *
 * A stream is its cudaStream_t as a number. 0 is the legacy default stream of the device that is named. A stream
 * must be alive when it is first named here and must not be destroyed while memory is used on it.
 *
 * Pools have PyTorch's names, pairs of numbers (MempoolId_t). (0, 0) is the shared pool.
 *
 * Functions of the caller's (filters, observers, sources) are given the `user` that came with them, may be called on any thread,
 * by several at a time, and must not throw. A `drop_user`, where there is one, is called once when the function will not be
 * called any more; it may be NULL.
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

/* Rises whenever something in this header changes its meaning. */
#define THALWEG_ABI_VERSION 2

typedef int32_t thalweg_status;
enum {
  THALWEG_OK = 0,
  THALWEG_OUT_OF_MEMORY = 1, /* no room: freeing memory and trying again makes sense */
  THALWEG_INVALID = 2,       /* the arguments make no sense */
  THALWEG_CAPTURE = 3,       /* not possible while a capture is under way */
  THALWEG_DRIVER = 4,        /* the CUDA driver refused */
  THALWEG_PANIC = 5,         /* a bug of this library */
  THALWEG_FORKED = 6         /* a forked child of a process that uses CUDA */
};

typedef struct thalweg_allocator thalweg_allocator;
typedef struct thalweg_checkpoint thalweg_checkpoint;
typedef struct thalweg_shared thalweg_shared;

/* Takes a piece of a text or a file. The bytes are only there during the call. */
typedef void (*thalweg_write)(void *user, const uint8_t *bytes, size_t count);

/* THALWEG_ABI_VERSION of the library. */
uint32_t thalweg_abi_version(void);
/* Its version, for people. */
const char *thalweg_version(void);
const char *thalweg_error_message(void);

/* ---- The allocator ------------------------------------------------------------------------------------------------------- */

/* Makes an allocator over devices of a kind: "cuda", or "sim" for simulated GPUs; with "+sanitizer"
 * behind it, one that is watched (see below). `settings` is a text in the grammar of
 * PYTORCH_ALLOC_CONF, which goes on top of that variable; "" adds nothing. If one of the two is wrong, the message points at the
 * place. No device is opened and CUDA is not initialised: that happens when a device is first named. */
thalweg_status thalweg_open(const char *kind, const char *settings, thalweg_allocator **allocator);

/* Gives an allocator up, and all memory that was taken from it. Nothing may use either from now on. A process that ends need not
 * call it. NULL is ignored. */
thalweg_status thalweg_close(thalweg_allocator *allocator);

/* Changes settings of all devices, also of those that are opened later. What `text` does not name stays. A wrong text changes
 * nothing, and the message points at the place. */
thalweg_status thalweg_set_settings(const thalweg_allocator *allocator, const char *text);

/* The settings of a device that are not at their defaults, in the same grammar. A device that is not open has those that it will
 * have, and is not opened. */
thalweg_status thalweg_settings(const thalweg_allocator *allocator, int32_t device, thalweg_write write, void *user);

/* The settings that PyTorch's snapshots name. UINT64_MAX means no limit, 0 divisions mean none. */
typedef struct {
  double garbage_collection_threshold;
  uint64_t max_split_size_bytes;
  uint64_t roundup_power2_divisions[16]; /* for sizes below 2 MiB, below 4 MiB, and so on */
  uint8_t expandable_segments, release_lock_on_cudamalloc, graph_capture_record_stream_reuse;
} thalweg_configuration;
thalweg_status thalweg_configured(const thalweg_allocator *allocator, int32_t device, thalweg_configuration *configuration);

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

/* At least `bytes` for work on `stream`, at a multiple of 512, or 0 for 0 bytes. Steady work touches no driver. What is not served
 * from the cache may block. */
thalweg_status thalweg_malloc(const thalweg_allocator *allocator, int32_t device, uint64_t bytes, uint64_t stream,
                              uint64_t *address);

/* The same at an exact address, a multiple of 512 that is free in a segment of the stream. */
thalweg_status thalweg_malloc_at(const thalweg_allocator *allocator, int32_t device, uint64_t bytes, uint64_t stream,
                                 uint64_t address);

/* Gives it back, without waiting. Work of its own stream may still use it. 0 is ignored. */
thalweg_status thalweg_free(const thalweg_allocator *allocator, uint64_t address);

/* `stream` of `device` (of the block's own if that is negative) uses the memory: when it is given back, it is not reused before
 * what the stream has been given by then is done. Memory that is not this allocator's is left alone, here and below, as PyTorch
 * leaves it. */
thalweg_status thalweg_record_stream(const thalweg_allocator *allocator, uint64_t address, int32_t device,
                                     uint64_t stream);

/* What `stream` has been given so far is the last that it does with the memory, until the next call: an event is recorded there
 * now, and it is all that reuse waits for. */
thalweg_status thalweg_record_use(const thalweg_allocator *allocator, uint64_t address, int32_t device, uint64_t stream);

/* From now on the owner of `stream` may destroy it at any moment, without a word (torch.cuda.ExternalStream). It is named to the
 * driver only in calls that name it here, and when memory is given back that was recorded for it. Its free memory stays with it
 * until memory is short; then the device is waited for. */
thalweg_status thalweg_set_stream_transient(const thalweg_allocator *allocator, int32_t device, uint64_t stream);

typedef struct {
  uint64_t address, size_bytes, requested_bytes;
  int32_t device;
} thalweg_live_block;

/* The live block that `address` is in. */
thalweg_status thalweg_find_block(const thalweg_allocator *allocator, uint64_t address, thalweg_live_block *block);

/* Lets `accessor` read and write the memory of `device` that is mapped page by page, now and later. (Other memory is a matter of
 * cudaDeviceEnablePeerAccess alone.) */
thalweg_status thalweg_enable_peer_access(const thalweg_allocator *allocator, int32_t device, int32_t accessor);

/* Does so for every two devices that are in use and can reach each other, now and later: for callers that do not learn when PyTorch
 * wants it. */
thalweg_status thalweg_open_to_peers(const thalweg_allocator *allocator);

/* Gives cached memory of all open devices back to the driver. Blocks until the devices are done with it. THALWEG_CAPTURE while
 * allocations go to a pool. */
thalweg_status thalweg_empty_cache(const thalweg_allocator *allocator);

/* The segment that the block at `address` is a part of. Memory of expandable segments has none. */
thalweg_status thalweg_base_allocation(const thalweg_allocator *allocator, uint64_t address, uint64_t *base,
                                       uint64_t *bytes);

/* The largest request that could be served now without giving anything back, about. */
thalweg_status thalweg_cache_info(const thalweg_allocator *allocator, int32_t device, uint64_t *largest_bytes);

/* Never takes more than `fraction` (0 to 1) of the device's memory from the driver. */
thalweg_status thalweg_set_memory_fraction(const thalweg_allocator *allocator, int32_t device, double fraction);
thalweg_status thalweg_memory_fraction(const thalweg_allocator *allocator, int32_t device, double *fraction);

/* ---- Pools --------------------------------------------------------------------------------------------------------------- */

/* Where a pool's segments come from. `allocate` gives an address that is a multiple of 512, or 0 if it has no memory. `stream`
 * is the stream that the memory will be used on first. */
typedef struct {
  void *user;
  void (*drop_user)(void *user);
  uint64_t (*allocate)(void *user, uint64_t bytes, uint64_t stream);
  void (*free)(void *user, uint64_t address, uint64_t bytes, uint64_t stream);
} thalweg_segment_source;

/* Makes a pool with one reference, or adds one. `source` may be NULL, and is only looked at when the pool is made. */
thalweg_status thalweg_pool_retain(const thalweg_allocator *allocator, int32_t device, uint64_t first, uint64_t second,
                                   const thalweg_segment_source *source);

/* Whether the pool's free blocks serve requests that go to no pool when memory is short; whether its blocks are never cut. Both
 * hold for requests to come. */
thalweg_status thalweg_pool_set_use_on_oom(const thalweg_allocator *allocator, int32_t device, uint64_t first,
                                           uint64_t second, uint8_t value);
thalweg_status thalweg_pool_set_no_split(const thalweg_allocator *allocator, int32_t device, uint64_t first,
                                         uint64_t second, uint8_t value);

/* How many references there are; 0 if there is no such pool. */
thalweg_status thalweg_pool_use_count(const thalweg_allocator *allocator, int32_t device, uint64_t first, uint64_t second,
                                      uint64_t *count);

/* Adds a reference, and from now until thalweg_end_allocate_to_pool, requests on streams for which `filter` is not 0 get memory
 * from the pool. The filter is called with a lock of the allocator held, and must not call it. `drop_user` is called also if this
 * fails. If it is for a capture, that has to be said too (thalweg_mark_capture_begin): a program may want a pool to itself and
 * capture nothing (torch.cuda.use_mem_pool). */
thalweg_status thalweg_begin_allocate_to_pool(const thalweg_allocator *allocator, int32_t device, uint64_t first,
                                              uint64_t second, uint8_t (*filter)(void *user, uint64_t stream),
                                              void *user, void (*drop_user)(void *user));

/* Ends that. The reference stays. */
thalweg_status thalweg_end_allocate_to_pool(const thalweg_allocator *allocator, int32_t device, uint64_t first,
                                            uint64_t second);

/* A capture is about to begin on the device, or has ended. In between no event is touched and nothing is waited for, memory that is
 * freed with uses on other streams waits for the end, and what cannot be done without is THALWEG_CAPTURE. Captures are counted; an end
 * without a beginning is THALWEG_INVALID. */
thalweg_status thalweg_mark_capture_begin(const thalweg_allocator *allocator, int32_t device);
thalweg_status thalweg_mark_capture_end(const thalweg_allocator *allocator, int32_t device);

/* Takes a reference away. With the last, the pool's memory may be given to others as soon as it is free; the host waits for the
 * device then, since a graph that lives in the pool may be running. */
thalweg_status thalweg_release_pool(const thalweg_allocator *allocator, int32_t device, uint64_t first, uint64_t second);

/* Gives the cached memory of the pools of this name back to the driver, on all open devices, if no reference is left:
 * a graph that lives in a pool needs its memory where it is. */
thalweg_status thalweg_empty_pool_cache(const thalweg_allocator *allocator, uint64_t first, uint64_t second);

/* Whether the pool's live blocks are exactly those that begin at these addresses. */
thalweg_status thalweg_check_pool(const thalweg_allocator *allocator, int32_t device, uint64_t first, uint64_t second,
                                  const uint64_t *addresses, size_t count, uint8_t *matches);

/* Notes what a pool looks like. Blocks until frees that wait for other streams are through. To be dropped with
 * thalweg_checkpoint_drop; it holds no memory. */
thalweg_status thalweg_checkpoint_take(const thalweg_allocator *allocator, int32_t device, uint64_t first, uint64_t second,
                                       thalweg_checkpoint **checkpoint);

typedef void (*thalweg_on_block)(void *user, uint64_t address, uint64_t bytes);

/* Puts a pool back to a checkpoint of it. All live blocks of the pool lose their memory: `on_freed` is called for each (with 0
 * bytes), and they must not be freed. Those that are live in the checkpoint are there again: `on_allocated` is called for each,
 * and they are to be freed. */
thalweg_status thalweg_checkpoint_restore(const thalweg_allocator *allocator, int32_t device,
                                          const thalweg_checkpoint *checkpoint, thalweg_on_block on_freed,
                                          thalweg_on_block on_allocated, void *user);
void thalweg_checkpoint_drop(thalweg_checkpoint *checkpoint);

/* ---- Other processes ----------------------------------------------------------------------------------------------------- */

/* Writes the handle by which another process can open the memory that `address` is in, in PyTorch's format, and how far behind
 * its beginning `address` lies. The block must live until no process has it open. */
thalweg_status thalweg_share(const thalweg_allocator *allocator, uint64_t address, thalweg_write write, void *user,
                             uint64_t *offset_bytes);

/* Opens such a handle of another process, or finds it open: where it begins. */
thalweg_status thalweg_open_shared(const thalweg_allocator *allocator, int32_t device, const uint8_t *bytes, size_t count,
                                   thalweg_shared **shared, uint64_t *address);
/* Lets go of it. The last to do so waits for the device, since work that reads the memory may be under way; during a capture, which
 * cannot wait, it stays open until the next is closed. */
thalweg_status thalweg_close_shared(const thalweg_allocator *allocator, thalweg_shared *shared);

/* ---- Statistics ---------------------------------------------------------------------------------------------------------- */

typedef struct {
  int64_t current, peak, allocated, freed;
} thalweg_statistic;

typedef struct {
  thalweg_statistic all, small_pool, large_pool;
} thalweg_by_pool;

/* The names and meanings are those of torch.cuda.memory_stats. The last three are Thalweg's own: bytes that were freed and wait
 * for other streams, how often a stream was made to wait for another, and how often pages were moved. */
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
/* What each private pool of the device has taken from the driver. The statistics are only there during the call. */
thalweg_status thalweg_private_pool_statistics(const thalweg_allocator *allocator, int32_t device,
                                               void (*give)(void *user, uint64_t first, uint64_t second,
                                                            const thalweg_statistic *reserved_bytes),
                                               void *user);
/* The same under PyTorch's keys: a line "key value" each. */
thalweg_status thalweg_memory_stats(const thalweg_allocator *allocator, int32_t device, thalweg_write write, void *user);
/* The same as a table for people. */
thalweg_status thalweg_memory_summary(const thalweg_allocator *allocator, int32_t device, uint8_t abbreviated,
                                      thalweg_write write, void *user);
thalweg_status thalweg_reset_peak_statistics(const thalweg_allocator *allocator, int32_t device);
thalweg_status thalweg_reset_accumulated_statistics(const thalweg_allocator *allocator, int32_t device);

/* ---- Snapshots ----------------------------------------------------------------------------------------------------------- */

/* `stack` is a number that the recorder of stacks was given, or 0. */
typedef struct {
  int32_t device;
  uint8_t is_large, is_expandable;
  uint64_t address, total_bytes, requested_bytes, allocated_bytes, active_bytes, stream, pool_first, pool_second;
  uint32_t stack;
} thalweg_segment;

/* A block that is active and not allocated was freed and waits for other streams. */
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

/* `time_us` is microseconds since 1970; 0 in what observers are told. Of THALWEG_OOM, `address` is how much the device had left.
 * The texts are only there during the call. */
typedef struct {
  uint8_t action;
  int32_t device;
  uint64_t address, size_bytes, stream, pool_first, pool_second;
  int64_t time_us;
  uint32_t stack;
  const char *compile_context;
  const char *user_metadata;
  const char *internal_metadata; /* what the allocator itself has to say */
} thalweg_event;

typedef struct {
  int32_t device;
  int64_t time_us;
  const char *name;
  const char *stage; /* START or END */
} thalweg_annotation;

/* Called with each part: a segment, then its blocks, then the next segment; then the events, device by device, the oldest first;
 * then annotations. No lock is held. None may be NULL. */
typedef struct {
  void *user;
  void (*segment)(void *user, const thalweg_segment *segment);
  void (*block)(void *user, const thalweg_block *block);
  void (*event)(void *user, const thalweg_event *event);
  void (*annotation)(void *user, const thalweg_annotation *annotation);
} thalweg_visitor;

/* What there is and what happened on all open devices; of one pool only, unless that is (0, 0). */
thalweg_status thalweg_visit_snapshot(const thalweg_allocator *allocator, uint64_t first, uint64_t second,
                                      uint8_t include_traces, const thalweg_visitor *visitor);

/* The same as the file that torch.cuda.memory._dump_snapshot writes, or as JSON. */
thalweg_status thalweg_write_snapshot(const thalweg_allocator *allocator, uint8_t as_json, thalweg_write write, void *user);

/* ---- What happens -------------------------------------------------------------------------------------------------------- */

/* The arguments of torch.cuda.memory._record_memory_history. `enabled`: 0 nothing, 1 the state, 2 all. `context`: 0 never, 1
 * state, 2 alloc, 3 all. `skip_actions`: a bit for each THALWEG_ action. */
typedef struct {
  uint8_t enabled, context, clear_history, compile_context, record_annotations;
  uint32_t skip_actions;
  uint64_t max_entries;
} thalweg_history_settings;

/* From now on, on all devices. Stacks are those of Python, if the process has an interpreter that knows the
 * allocating thread. */
thalweg_status thalweg_record_history(const thalweg_allocator *allocator, const thalweg_history_settings *settings);

/* Keeps stacks for histories. `take` is called on the thread whose stack it is, with no lock held, and keeps the stack under a number
 * that is not taken; it answers 0 if there is none. `forget` is called with numbers, on any thread and with no lock held, that no
 * block and no event refers to any more. */
typedef struct {
  void *user;
  uint8_t (*take)(void *user, uint32_t stack);
  void (*forget)(void *user, uint32_t stack);
} thalweg_stack_recorder;

/* From now on and for good, stacks are kept by this recorder; before, and without one, they are Python's. To be called before a history
 * with stacks is recorded, once. */
thalweg_status thalweg_record_stacks_by(const thalweg_allocator *allocator, const thalweg_stack_recorder *recorder);

/* Takes no more stacks, tells no observer of failures and makes no calls for memory any more, and waits for the threads that do so.
 * Code that ends an interpreter calls this first, without holding it: Python kills threads that wait for an interpreter which is
 * ending, by an unwinding that nothing here survives. */
thalweg_status thalweg_stop_stacks(const thalweg_allocator *allocator);

/* Adds an observer of each event, for good, with a lock of the allocator held: it must not call it. */
thalweg_status thalweg_observe_events(const thalweg_allocator *allocator,
                                      void (*told)(void *user, const thalweg_event *event), void *user);

/* Adds an observer of each request that fails for lack of memory, for good, with no lock held. `allowed_bytes` is all that
 * the device has, if there is no limit. */
thalweg_status thalweg_observe_out_of_memory(const thalweg_allocator *allocator,
                                             void (*told)(void *user, int32_t device, uint64_t size_bytes,
                                                          uint64_t allowed_bytes, uint64_t free_bytes),
                                             void *user);

/* The same for requests that are refused for the memory fraction before anything is tried (throw_on_cudamalloc_oom). */
thalweg_status thalweg_observe_rejections(const thalweg_allocator *allocator,
                                          void (*told)(void *user, int32_t device, uint64_t size_bytes,
                                                       uint64_t allowed_bytes, uint64_t free_bytes),
                                          void *user);

/* Adds a function that is asked for memory when it is short, and answers whether it gave any back. It may call thalweg_free, and nothing else. */
thalweg_status thalweg_add_free_memory_callback(const thalweg_allocator *allocator, uint8_t (*asked)(void *user),
                                                void *user);

/* The stack with which the live block that `address` is in was allocated; 0 if none was recorded. */
thalweg_status thalweg_stack_of_block(const thalweg_allocator *allocator, uint64_t address, uint32_t *stack);

/* Puts a text to that block, as an event of its own. Texts are kept for good. */
thalweg_status thalweg_annotate_block(const thalweg_allocator *allocator, uint64_t address, const char *text);

/* The start, or the end, of a scope of the program, for histories of a device that keep them. */
thalweg_status thalweg_annotate_scope(const thalweg_allocator *allocator, int32_t device, const char *name,
                                      uint8_t is_start);

/* What stands beside the events of the calling thread from now on. Texts are kept for good. */
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
 * An allocator of kind "cuda+sanitizer" or "sim+sanitizer" watches what is done with its memory, and finds accesses that nothing puts
 * in order, memory that is freed under another stream's work that was not recorded, and memory that is used after it was freed. It
 * knows its own doings; what is submitted by others is reported here, on the thread that submits, in the order of submission. Nothing
 * here changes what a program does. With another kind all of these are THALWEG_INVALID. */

/* Where the calling thread is in its program, for what is allocated, recorded and freed from now on; a null `operation` ends that.
 * `file` may be null: then the line is not known. */
thalweg_status thalweg_sanitizer_at(const thalweg_allocator *allocator, const char *operation, const char *file, uint32_t line);

/* `stream` was given work, or is about to be. `operands` are `count` numbers: for each operand its address, the bytes of an element,
 * 0 (read), 1 (written) or 2 (both), the number of dimensions, their sizes, and their strides in elements. While the stream takes
 * part in a capture this is ignored: nothing runs then. */
thalweg_status thalweg_sanitizer_work(const thalweg_allocator *allocator, int32_t device, uint64_t stream, const char *operation,
                                      const char *file, uint32_t line, const int64_t *operands, size_t count);

/* What happened to an event (cudaEvent_t as a number): 0, it was recorded on the stream; 1, the stream was told to wait for it; 2, the
 * host saw it complete; 3, it was destroyed. Device and stream are ignored by the latter two. */
thalweg_status thalweg_sanitizer_event(const thalweg_allocator *allocator, int32_t what, uint64_t event, int32_t device,
                                       uint64_t stream);

/* The host saw complete all that the stream, or the device, was given so far. */
thalweg_status thalweg_sanitizer_stream_done(const thalweg_allocator *allocator, int32_t device, uint64_t stream);
thalweg_status thalweg_sanitizer_device_done(const thalweg_allocator *allocator, uint32_t device);

/* What reports call a stream. */
thalweg_status thalweg_sanitizer_name_stream(const thalweg_allocator *allocator, int32_t device, uint64_t stream, const char *name);

/* What was found, but for the first `from` findings: calls `write` once for each, with its text, and says how many they were. */
thalweg_status thalweg_sanitizer_findings(const thalweg_allocator *allocator, uint64_t from, uint64_t *count, thalweg_write write,
                                          void *user);

/* ---- Kernels for PyTorch's operators -------------------------------------------------------------------------------------------- */

/* Registers kernels of Thalweg's for operators of the PyTorch of this process, through its stable C interface (2.10 and later). `folder` is
 * that of its libraries (torch/lib), which must be loaded; `key` is the dispatch key: "CUDA", or "CPU" for tests of the interface;
 * `operators` is a list of names, separated by commas, or "" for those of the table below, with `everywhere` for all. With `everywhere` not 0 calls are taken also where the table below says
 * that PyTorch's kernel is as good. What is not taken goes to PyTorch's kernel. On a GPU kernels are loaded on the allocator's devices;
 * PyTorch's own allocator may stay in use. The allocator must not be closed any more, and is the one of all later calls. What is registered already stays. */
thalweg_status thalweg_enable_kernels(const thalweg_allocator *allocator, const char *folder, const char *key, const char *operators,
                                      uint8_t everywhere);

/* Takes all kernels out again: PyTorch's are there as before. */
thalweg_status thalweg_disable_kernels(const thalweg_allocator *allocator);

/* The table of kernels, a class of calls per line, with tabs between: the operator; dtypes, separated by commas; the fewest and the most
 * columns; the fewest elements; the speed of Thalweg's kernel and of PyTorch's in % of a copy; 1 if it is registered, else 0; how many calls of the
 * operator were taken, and how many were not; why none is taken any more, or nothing. */
thalweg_status thalweg_kernels(const thalweg_allocator *allocator, thalweg_write write, void *user);

#ifdef __cplusplus
}
#endif
#endif
