#include "progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#ifdef _WIN32
#include <io.h>
#else
#include <unistd.h>
#endif

namespace vkattn::tools {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::chrono::milliseconds repaint_every(200);
constexpr size_t most_columns = 79;  // a longer line would wrap, and could not be overwritten

bool is_terminal() {
#ifdef _WIN32
    return _isatty(2) != 0;
#else
    return isatty(2) == 1;
#endif
}

// Work that is over before this has no line. The environment's VKATTN_PROGRESS_AFTER, in seconds, is for tests.
Seconds patience() {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody here sets it
    const char* given = std::getenv("VKATTN_PROGRESS_AFTER");
    return Seconds(given == nullptr ? 2.0 : std::strtod(given, nullptr));
}

std::string time_text(double seconds) {
    const int64_t whole = static_cast<int64_t>(std::min(seconds, 1e9)) + 1;  // never 0 s left
    return whole < 60 ? fmt::format("{} s", whole) : fmt::format("{} min {} s", whole / 60, whole % 60);
}

struct Piece {
    std::string name;
    double total, done;
    Clock::time_point start;
};

// The pieces of work at hand, and the thread that shows them: it goes on while the main thread waits for a driver.
class Display {
  public:
    size_t begin(std::string name, double total) {
        std::unique_lock lock(mutex_);
        pieces_.push_back({std::move(name), total, 0, Clock::now()});
        if (!thread_.joinable())
            thread_ = std::jthread([this](const std::stop_token& stop) { repaint(stop); });
        paint();
        return pieces_.size() - 1;
    }

    void advance(size_t index, double by) {
        const std::lock_guard lock(mutex_);
        pieces_[index].done += by;
    }

    // Pieces that began later have ended before. With the last of them the line and its thread go.
    void end() {
        {
            const std::lock_guard lock(mutex_);
            pieces_.pop_back();
            if (!pieces_.empty()) return;
            clear();
        }
        thread_ = {};
    }

    void print_row(std::string_view row) {
        const std::lock_guard lock(mutex_);
        clear();
        fmt::print("{}\n", row);
        std::fflush(stdout);
    }

    void print_warning(std::string_view text) {
        const std::lock_guard lock(mutex_);
        clear();
        fmt::print(stderr, "vkattn: warning: {}\n", text);
    }

  private:
    void repaint(const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, stop, repaint_every, [] { return false; }) && !stop.stop_requested())
            if (!pieces_.empty()) paint();
    }

    std::string text() const {
        std::string all;
        for (const Piece& p : pieces_) {
            all += (all.empty() ? "" : ", ") + p.name;
            if (p.total > 0) all += fmt::format(" {:.0f} %", 100 * std::min(1.0, p.done / p.total));
        }
        // A part of the work cannot say how long the whole will take.
        const Piece& whole = pieces_.front();
        const double so_far = Seconds(Clock::now() - whole.start).count();
        const bool known = whole.done > 0 && whole.total > 0;
        const double left = known ? so_far * std::max(0.0, whole.total / whole.done - 1) : so_far;
        const std::string time = ", " + time_text(left) + (known ? " left" : " so far");
        return all.substr(0, most_columns - time.size()) + time;
    }

    void paint() {
        if (Clock::now() - start_ < patience_) return;
        const std::string line = text();
        std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
        std::fflush(stderr);
        painted_ = true;
    }

    void clear() {
        if (painted_) std::fputs("\r\x1b[K", stderr);
        painted_ = false;
    }

    const Seconds patience_ = patience();
    const Clock::time_point start_ = Clock::now();  // of the first piece
    std::mutex mutex_;
    std::condition_variable_any changed_;
    std::vector<Piece> pieces_;
    bool painted_ = false;
    std::jthread thread_;
};

// A program that reads stderr and shows it, as the Python package does, sets VKATTN_PROGRESS.
bool is_wanted() {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody here sets it
    return is_terminal() || std::getenv("VKATTN_PROGRESS") != nullptr;
}

// Returns null where nobody wants to see progress.
Display* display() {
    static Display* const one = is_wanted() ? new Display : nullptr;
    return one;
}

}  // namespace

Phase::Phase(std::string name, double total) {
    if (Display* d = display()) index_ = d->begin(std::move(name), total);
}

Phase::~Phase() {
    if (Display* d = display()) d->end();
}

void Phase::advance(double by) {
    if (Display* d = display()) d->advance(index_, by);
}

void print_row(std::string_view row) {
    if (Display* d = display()) return d->print_row(row);
    fmt::print("{}\n", row);
    std::fflush(stdout);
}

void print_warning(std::string_view text) {
    if (Display* d = display()) return d->print_warning(text);
    fmt::print(stderr, "vkattn: warning: {}\n", text);
}

}  // namespace vkattn::tools
