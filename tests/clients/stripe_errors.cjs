// Makes calls with Stripe's official client for Node and prints the results as JSON.
//
//     stripe_errors.cjs HOST PORT
//
// The script creates a customer twice, behind a rate limit that admits one request. Then it creates a coupon twice with
// the same idempotency key, behind an API that closes the connection without a response. The client does not retry.

const Stripe = require("stripe");

async function result(call) {
  try {
    return { id: (await call).id ?? null };
  } catch (error) {
    const { type, code, statusCode: status, message } = error;
    return { type, code, status, message };
  }
}

async function main(host, port) {
  const stripe = new Stripe("sk_test_x", {
    host,
    port,
    protocol: "http",
    maxNetworkRetries: 0,
    telemetry: false,
  });
  const customer = () => result(stripe.customers.create({ email: "ann@example.com" }));
  const coupon = () => result(stripe.coupons.create({ percent_off: 5 }, { idempotencyKey: "k1" }));
  return {
    customer: [await customer(), await customer()],
    coupon: [await coupon(), await coupon()],
  };
}

main(...process.argv.slice(2)).then((results) => console.log(JSON.stringify(results)));
