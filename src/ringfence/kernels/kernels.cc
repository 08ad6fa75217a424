// What a step of training consists of, for XLA on a CPU.
//
// XLA multiplies one matrix after another and waits for all cores after each. Batches of reinforcement learning are so
// small that the waiting, and the passes over activations between the products, cost as much as a third of the time. Here
// a core takes some of the batch's rows through all layers without waiting, and does what lies between two
// products while the rows are in its cache.
//
// Calls, each over any number of networks at once (the leading axis):
//
//     forward    y, and what the gradient needs of each hidden layer if it is to be kept
//     backward   the gradients of x or of weights and biases or both, given that of y
//     adam       a step of the optimiser
//     threefry   random words

#include "network.h"
#include "optimiser.h"
#include "threefry.h"

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    ringfence_forward, forward,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attr<bool>("normalise"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringfence_backward, backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<bool>("normalise")
                                  .Attr<bool>("wants_input")
                                  .Attr<bool>("wants_weights"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringfence_adam, adam,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Buffer>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<float>("rate")
                                  .Attr<float>("decay")
                                  .Attr<float>("square_decay")
                                  .Attr<float>("epsilon"));
using Words = ffi::Buffer<ffi::U32>;
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringfence_threefry, threefry,
                              ffi::Ffi::Bind().Arg<Words>().Arg<Words>().Arg<Words>().Ret<Words>().Ret<Words>());
