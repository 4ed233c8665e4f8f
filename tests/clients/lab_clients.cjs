// Sends requests to the gateway of `tidegate lab` with a client library and its retries.
//
//     lab_clients.cjs undici|got OPERATIONS
//
// The URL of the gateway is in TIDEGATE_URL. With TIDEGATE_FIRST_REQUEST, a request without retries comes first, so that
// a limit rejects the next one. An operation that fails after all retries is reported and not an error.

const url = process.env.TIDEGATE_URL;

const clients = {
    undici() {
        const { Agent, RetryAgent, request } = require('undici');
        const dispatcher = new RetryAgent(new Agent());
        return async () => {
            const { statusCode, body } = await request(`${url}/items`, { dispatcher });
            await body.dump();
            return statusCode;
        };
    },
    got() {
        const { default: got } = require('got');
        return async () => (await got(`${url}/items`, { retry: { limit: 3 } })).statusCode;
    },
};

async function main(library, operations) {
    const operate = clients[library]();
    if (process.env.TIDEGATE_FIRST_REQUEST) await (await fetch(`${url}/`)).text();
    for (let count = 0; count < operations; count += 1) {
        try {
            console.log(library, await operate());
        } catch (error) {
            console.log(library, error.code, error.message);
        }
    }
}

main(process.argv[2], Number(process.argv[3])).then(() => process.exit());
