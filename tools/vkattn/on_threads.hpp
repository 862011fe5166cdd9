// Things that are made on several threads, and taken in their order on the main one: plans, say, each of which waits
// for a driver's compiler.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "interruption.hpp"

namespace vkattn::tools {

template <class T>
class OnThreads {
  public:
    // Several threads call `make` for 0 .. count-1. After an interruption they call it no more.
    OnThreads(size_t count, std::function<T(size_t)> make) : make_(std::move(make)), promises_(count) {
        const size_t cores = std::max(1u, std::thread::hardware_concurrency());
        for (size_t t = std::min({count, cores, size_t{16}}); t-- > 0;)
            threads_.emplace_back([this] { work(); });
    }
    // Waits for one of them, once each. Throws what make() threw. After an interruption it may be a T{}.
    T take(size_t i) { return promises_[i].get_future().get(); }

  private:
    void work() {
        for (size_t i = next_++; i < promises_.size(); i = next_++) try {
                promises_[i].set_value(stop_requested() ? T{} : make_(i));
            } catch (...) {
                promises_[i].set_exception(std::current_exception());
            }
    }

    std::function<T(size_t)> make_;
    std::vector<std::promise<T>> promises_;
    std::atomic<size_t> next_ = 0;
    std::vector<std::jthread> threads_;  // the last member: they are joined before the others end
};

}  // namespace vkattn::tools
