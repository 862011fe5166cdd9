// Plots of a report, as SVG that follows the page's colours. Both axes are logarithmic.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance_report.hpp"
#include "report.hpp"

namespace vkattn::tools::report {
namespace {

constexpr double width = 440, height = 280, left = 46, right = 8, top = 10, bottom = 34;
// Told apart by people who see few colours, too: by Okabe and Ito, on light and on dark.
constexpr const char* colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

struct Point {
    double x, y;
};
struct Line {
    std::string name;
    std::vector<Point> points;
    bool is_ceiling = false;
};

struct Axis {
    double least = std::numeric_limits<double>::infinity(), most = 0;

    void include(double x) {
        least = std::min(least, x);
        most = std::max(most, x);
    }
    // From 0 to 1.
    double at(double x) const { return most > least ? std::log(x / least) / std::log(most / least) : 0.5; }
};

class Plot {
  public:
    explicit Plot(std::vector<Line> lines) : lines_(std::move(lines)) {
        for (const Line& line : lines_)
            for (const Point& p : line.points) {
                x_.include(p.x);
                y_.include(p.y);
            }
        y_.least = std::pow(10, std::floor(std::log10(y_.least)));
        y_.most = std::pow(10, std::ceil(std::log10(y_.most * 1.001)));
    }

    std::string svg(const std::string& title, const std::string& x_name,
                    const std::vector<double>& x_marks) const {
        std::string all = fmt::format(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\" width=\"100%\" role=\"img\" "
            "aria-label=\"{}\">\n",
            title, width, height, title);
        for (double y = y_.least; y <= y_.most * 1.001; y *= 10)
            all += fmt::format(
                "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"var(--line)\"/>"
                "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n",
                left, width - right, at_y(y), at_y(y), left - 5, at_y(y) + 4, y);
        for (const double x : x_marks)
            if (x >= x_.least * 0.999 && x <= x_.most * 1.001)
                all += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.4g}</text>\n",
                                   at_x(x), height - bottom + 15, x);
        all += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", width - right,
                           height - 4, x_name);
        size_t colour = 0;
        for (const Line& line : lines_) all += draw(line, line.is_ceiling ? "var(--soft)" : next(colour));
        return all + "</svg>\n" + legend() + "</figure>\n";
    }

  private:
    static const char* next(size_t& i) { return colours[i++ % std::size(colours)]; }
    double at_x(double x) const { return left + (width - left - right) * x_.at(x); }
    double at_y(double y) const { return height - bottom - (height - top - bottom) * y_.at(y); }

    std::string draw(const Line& line, const std::string& colour) const {
        std::string points, dots;
        for (const Point& p : line.points) {
            points += fmt::format("{:.1f},{:.1f} ", at_x(p.x), at_y(p.y));
            if (!line.is_ceiling)
                dots += fmt::format(
                    "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}: {:.4g}"
                    "</title></circle>",
                    at_x(p.x), at_y(p.y), colour, conformance::escaped(line.name), p.y);
        }
        return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>{}\n",
                           points, colour, line.is_ceiling ? " stroke-dasharray=\"5 4\"" : "", dots);
    }

    std::string legend() const {
        std::string all = "<p class=\"legend\">";
        size_t colour = 0;
        for (const Line& line : lines_)
            all +=
                fmt::format("<span><i style=\"background:{}\"></i>{}</span> ",
                            line.is_ceiling ? "var(--soft)" : next(colour), conformance::escaped(line.name));
        return all + "</p>\n";
    }

    std::vector<Line> lines_;
    Axis x_, y_;
};

// Cases that differ in their length alone, by what they have in common: "forward f16 d64".
std::vector<Line> lines_by_length(const Found& found) {
    std::map<std::string, Line> lines;
    for (const auto& [name, r] : found.benched) {
        const size_t at = name.rfind(" n");
        if (!r.contains("ms") || name.starts_with("decoding") || at == std::string::npos) continue;
        Line& line = lines[name.substr(0, at)];
        line.name = name.substr(0, at);
        line.points.push_back({r["problem"]["seqlen_q"], r["tflops"]});
    }
    std::vector<Line> all;
    for (auto& [name, line] : lines) {
        std::ranges::sort(line.points, {}, &Point::x);
        all.push_back(std::move(line));
    }
    return all;
}

// The rate over the operations that each byte of query, key, value and out has, below what the device can do.
std::vector<Line> lines_of_roofline(const Found& found) {
    std::map<std::string, Line> lines;
    Axis x;
    for (const auto& [name, r] : found.benched) {
        if (!r.contains("ms")) continue;
        const double intensity = 1e3 * r["tflops"].get<double>() / r["gbps"].get<double>();
        const std::string kind = name.substr(0, name.find(' ', name.find(' ') + 1));
        Line& line = lines[kind];
        line.name = kind;
        line.points.push_back({intensity, r["tflops"]});
        x.include(intensity);
    }
    std::vector<Line> all;
    for (auto& [name, line] : lines) {
        std::ranges::sort(line.points, {}, &Point::x);
        all.push_back(std::move(line));
    }
    const double reading =
        1e-3 * found.ceilings["read_gbps"].get<double>();  // TFLOP/s at one operation a byte
    for (const auto& [key, what] : {std::pair{"fma_tflops", "float32"}, {"matrix_tflops", "matrix units"}}) {
        if (found.ceilings[key].is_null()) continue;
        const double most = found.ceilings[key], bend = std::clamp(most / reading, x.least, x.most);
        all.push_back({fmt::format("{}, and the bytes that it reads", what),
                       {{x.least, std::min(most, reading * x.least)},
                        {bend, std::min(most, reading * bend)},
                        {x.most, std::min(most, reading * x.most)}},
                       true});
    }
    return all;
}

}  // namespace

std::string plots(const Found& found) {
    const std::vector<Line> by_length = lines_by_length(found), roofline = lines_of_roofline(found);
    std::string html;
    if (!by_length.empty())
        html += Plot(by_length).svg("TFLOP/s by length, 16 heads", "rows", {512, 1024, 2048, 4096, 8192});
    if (!roofline.empty())
        html += Plot(roofline).svg("TFLOP/s by operations a byte, and the ceilings", "operations a byte",
                                   {1, 10, 100, 1000, 10000});
    return html;
}

}  // namespace vkattn::tools::report
