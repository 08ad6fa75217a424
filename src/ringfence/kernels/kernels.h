// The parts of a training step, as functions that XLA calls on a CPU.
//
// XLA multiplies one matrix after another and waits for all cores after each product. Batches of reinforcement learning are
// so small that this waiting, and the passes over activations between the products, take up to a third of the time. Here a
// core takes some rows of the batch through all layers without waiting, and applies bias, LayerNorm and ReLU while the rows
// are in its cache.
//
// Calls, each over any number of networks at once (the leading axis):
//
//     forward    y and, if asked for, what the gradient needs of each hidden layer
//     backward   the gradients of x, of weights and biases, or of both, given the gradient of y
//     adam       a step of the optimiser
//     threefry   random words
//
// Besides, for a guard in a control loop, without XLA: `ringfence_scores`.
//
// They give what plain JAX gives, NaN and infinity included, up to the order in which floats are added. Shapes are checked in
// Python before a call is made and here when it is run.

#pragma once

#include "network.h"
#include "optimiser.h"
#include "scores.h"
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
